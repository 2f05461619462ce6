package fence_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestRefusalsTellTheCasesApart of backends that are not registered.
func TestRefusalsTellTheCasesApart(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	empty, err := h.Fences.Fence(h.Ctx(), "nobody was granted")
	if err != nil {
		t.Fatal(err)
	}
	first := h.Grant("a")
	now := h.Grant("b")
	stranger := fencing.Term{Award: h.Award("c")}
	for _, c := range []struct {
		name       string
		fence      *fence.Fence
		term       fencing.Term
		told, held fencing.Epoch
		state      string
		epoch      fencing.Epoch // in DETAIL
	}{
		{"the leader", h.Fence, now, 2, 2, "", 0},
		{"superseded, was told", h.Fence, first, 1, 1, "ZF001", 1},
		{"superseded, was never told", h.Fence, first, 0, 1, "ZF001", 1},
		{"superseded, and forgot what it held", h.Fence, first, 0, 0, "ZF001", 1},
		{"superseded, and claims the current epoch", h.Fence, first, 2, 1, "ZF001", 1},
		{"superseded, forgot what it held, and claims the current epoch", h.Fence, first, 2, 0, "ZF001", 1},
		{"a follower", h.Fence, stranger, 0, 0, "ZF002", 0},
		{"a follower that claims the leader's epoch", h.Fence, stranger, 2, 0, "ZF002", 2},
		{"the leader, not yet told", h.Fence, now, 0, 2, "ZF003", 2},
		{"the leader, told an older epoch", h.Fence, now, 1, 2, "ZF003", 2},
		{"told more than the fence knows", h.Fence, now, 7, 7, "ZF004", 7},
		{"a follower that claims to be the leader", h.Fence, stranger, 2, 2, "ZF004", 2},
		{"nobody was granted", empty, stranger, 0, 0, "ZF002", 0},
		{"nobody was granted, but this one says so", empty, stranger, 3, 3, "ZF004", 3},
	} {
		w := h.Worker(c.term)
		w.Fence = c.fence
		err := w.CheckAs(h.Ctx(), c.told, c.held)
		if fencetest.StateOf(err) != c.state {
			t.Errorf("%s: got %v; want %q", c.name, err, c.state)
		} else if err != nil {
			if got := fencetest.DetailOf(t, err); got.Epoch != c.epoch || got.Worker != c.term.Worker || got.Incarnation != c.term.Incarnation {
				t.Errorf("%s: detail %+v; want epoch %d of %s", c.name, got, c.epoch, c.term.Worker)
			}
		}
	}
}

// hostile are names that a worker may choose for itself.
var hostile = []string{
	"plain", "it's", `back\slash`, `quote"quote`, "new\nline\tand\x01\x7f", "%s %1$s %", "Grüße", "漢字 😀", `'||(SELECT 1)||'`,
	`E'\'; DROP TABLE x; --`, "$1 $$ $tag$", strings.Repeat("long", 200),
}

func TestErrorsAreASCIIWhateverTheNames(t *testing.T) {
	t.Parallel()
	h := fencetest.New(t, pgtest.Shared(t))
	for i, name := range hostile {
		award := h.Award(fmt.Sprint(i))
		award.Worker, award.Incarnation = name, name+fmt.Sprint(i)
		epoch, err := h.Fence.Grant(h.Ctx(), award)
		if err != nil {
			t.Fatalf("grant to %q: %v", name, err)
		}
		w := h.Worker(fencing.Term{Award: award})
		if err := w.CheckAs(h.Ctx(), epoch, epoch); err != nil {
			t.Errorf("%q: the leader: %v", name, err)
		}
		err = w.CheckAs(h.Ctx(), 0, epoch)
		if fencetest.StateOf(err) != fencing.StateStartOver {
			t.Errorf("%q: %v; want ZF003", name, err)
			continue
		}
		want := []rune(name)
		if d := fencetest.DetailOf(t, err); d.Worker != string(want[:min(len(want), 255)]) || d.CurrentWorker != d.Worker {
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
