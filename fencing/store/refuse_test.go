package store_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestRefusalsTellTheCasesApart of backends that are not registered.
func TestRefusalsTellTheCasesApart(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	empty, err := h.store.Fence(h.ctx(), "nobody was granted")
	if err != nil {
		t.Fatal(err)
	}
	first := h.grant("a")
	now := h.grant("b")
	stranger := fencing.Term{Award: h.award("c")}
	for _, c := range []struct {
		name       string
		fence      *store.Fence
		term       fencing.Term
		told, held fencing.Epoch
		state      string
		epoch      fencing.Epoch // in DETAIL
	}{
		{"the leader", h.fence, now, 2, 2, "", 0},
		{"superseded, was told", h.fence, first, 1, 1, "ZF001", 1},
		{"superseded, was never told", h.fence, first, 0, 1, "ZF001", 1},
		{"superseded, and forgot what it held", h.fence, first, 0, 0, "ZF001", 1},
		{"superseded, and claims the current epoch", h.fence, first, 2, 1, "ZF001", 1},
		{"superseded, forgot what it held, and claims the current epoch", h.fence, first, 2, 0, "ZF001", 1},
		{"a follower", h.fence, stranger, 0, 0, "ZF002", 0},
		{"a follower that claims the leader's epoch", h.fence, stranger, 2, 0, "ZF002", 2},
		{"the leader, not yet told", h.fence, now, 0, 2, "ZF003", 2},
		{"the leader, told an older epoch", h.fence, now, 1, 2, "ZF003", 2},
		{"told more than the fence knows", h.fence, now, 7, 7, "ZF004", 7},
		{"a follower that claims to be the leader", h.fence, stranger, 2, 2, "ZF004", 2},
		{"nobody was granted", empty, stranger, 0, 0, "ZF002", 0},
		{"nobody was granted, but this one says so", empty, stranger, 3, 3, "ZF004", 3},
	} {
		w := h.worker(c.term)
		w.fence = c.fence
		err := w.checkAs(h.ctx(), c.told, c.held)
		if stateOf(err) != c.state {
			t.Errorf("%s: got %v; want %q", c.name, err, c.state)
		} else if err != nil {
			if got := parseDetail(t, err); got.Epoch != c.epoch || got.Worker != c.term.Worker || got.Incarnation != c.term.Incarnation {
				t.Errorf("%s: detail %+v; want epoch %d of %s", c.name, got, c.epoch, c.term.Worker)
			}
		}
	}
}

type errorDetail struct {
	Resource      string        `json:"resource"`
	Worker        string        `json:"worker"`
	Incarnation   string        `json:"incarnation"`
	Epoch         fencing.Epoch `json:"epoch"`
	CurrentEpoch  fencing.Epoch `json:"current_epoch"`
	CurrentWorker string        `json:"current_worker"`
}

func parseDetail(t testing.TB, err error) errorDetail {
	t.Helper()
	var r *fencing.Refusal
	if !errors.As(err, &r) {
		t.Fatalf("not a refusal: %v", err)
	}
	var d errorDetail
	if err := json.Unmarshal([]byte(r.Detail), &d); err != nil || strings.Contains(r.Detail, "\n") {
		t.Errorf("DETAIL %q is not one line of JSON: %v", r.Detail, err)
	}
	if r.Hint == "" {
		t.Errorf("no hint with %s", r.Message)
	}
	return d
}

// hostile are names that a worker may choose for itself.
var hostile = []string{
	"plain", "it's", `back\slash`, `quote"quote`, "new\nline\tand\x01\x7f", "%s %1$s %", "Grüße", "漢字 😀", `'||(SELECT 1)||'`,
	`E'\'; DROP TABLE x; --`, "$1 $$ $tag$", strings.Repeat("long", 200),
}

func TestErrorsAreASCIIWhateverTheNames(t *testing.T) {
	t.Parallel()
	h := newTestDatabase(t, pgtest.Shared(t))
	for i, name := range hostile {
		award := h.award(fmt.Sprint(i))
		award.Worker, award.Incarnation = name, name+fmt.Sprint(i)
		epoch, err := h.fence.Grant(h.ctx(), award)
		if err != nil {
			t.Fatalf("grant to %q: %v", name, err)
		}
		w := h.worker(fencing.Term{Award: award})
		if err := w.checkAs(h.ctx(), epoch, epoch); err != nil {
			t.Errorf("%q: the leader: %v", name, err)
		}
		err = w.checkAs(h.ctx(), 0, epoch)
		if stateOf(err) != fencing.StateStartOver {
			t.Errorf("%q: %v; want ZF003", name, err)
			continue
		}
		want := []rune(name)
		if d := parseDetail(t, err); d.Worker != string(want[:min(len(want), 255)]) || d.CurrentWorker != d.Worker {
			t.Errorf("%q came back as %q and %q", name, d.Worker, d.CurrentWorker)
		}
		var refusal *fencing.Refusal
		errors.As(err, &refusal)
		for _, r := range refusal.Message + refusal.Detail + refusal.Hint {
			if r < ' ' || r > '~' {
				t.Errorf("%q: the error holds %q: %s %s", name, r, refusal.Message, refusal.Detail)
				break
			}
		}
	}
}
