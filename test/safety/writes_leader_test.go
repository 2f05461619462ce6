package safety

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// eachWritesCluster runs the test on the default server and on PostgreSQL 18.
func eachWritesCluster(t *testing.T, test func(h *writesCluster)) {
	t.Parallel()
	for name, major := range map[string]int{"default": 0, "18": 18} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWritesCluster(t, major))
		})
	}
}

// paths are the paths that the cluster's server knows. On another server than the default one, they are a third of
// those that each server knows, unless all forms are to run: make test-matrix runs all paths on each version.
func (h *writesCluster) paths() []writePath {
	n := 0
	return slices.DeleteFunc(writePaths(), func(p writePath) bool {
		if h.second && !allForms && p.since == 0 {
			n++
			return n%3 != 0
		}
		return p.since > h.major
	})
}

func (h *writesCluster) params(p writePath, x *side, more ...string) []string {
	return append([]string{"user", p.user(), "database", x.db, "client_encoding", "UTF8", "application_name", "worker"}, more...)
}

// TestWritePathsOfTheLeader runs each path in each form against Postgres and
// through the proxy as leader: the same is said, and the same is done; and
// something is done, lest the path be none. Postgres itself is asked for each, so
// that not every form of every path is run unless FENCEPOST_TEST_ALL_FORMS is
// set.
func TestWritePathsOfTheLeader(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		holder, _ := wiretest.Connect(h.t, h.Addr, "user", "app", "database", h.fenced.db, "fencepost.resource", "r", "fencepost.worker", "w")
		h.Candidacy(h.fenced.db, "r", "w").Grant()
		defer holder.Close()
		for _, p := range h.paths() {
			h.t.Run(name(p.name), func(t *testing.T) {
				for i, f := range h.some(p, h.direct, leaderForms) {
					if !f.readOnly { // there it is Postgres that refuses
						h.comparesAsLeader(t, p, i)
					}
				}
			})
		}
	})
}

// outcome is what one side says and does.
type outcome struct {
	said    []string
	around  []string // and what was heard
	within  digest
	changed bool
}

// runAlone runs the i-th form that is run of p on one side.
func (h *writesCluster) runAlone(t *testing.T, p writePath, i int, x *side, address string, more ...string) (o outcome) {
	t.Helper()
	h.reset(t, x)
	fill := func(s string) string { return h.fill(s, x) }
	f := h.some(p, x, leaderForms)[i]
	c, _ := wiretest.Connect(t, address, h.params(p, x, more...)...)
	before, _ := sendPieces(t, c, queries(p.before, fill)...)
	if state := wiretest.ErrorOf(before); state != "" {
		t.Fatalf("%s: what comes before fails: %v", f.name, before)
	}
	around, within := h.shared, *x.base
	if len(p.before) > 0 {
		around, within = h.heard(t, x), x.digest(t)
	}
	all, ended := sendPieces(t, c, append(append(f.first, f.pieces...), Q("select count(*) from pg_class where relname = 'c'"))...)
	o.said = transcriptOf(all, ended, x.db)
	if !ended {
		leaveNow(c)
	}
	h.settle(t, x)
	o.around, o.within = h.heard(t, x), x.digest(t)
	o.changed = difference(o.around, around) != "" || !o.within.is(within)
	x.now = &o.within
	return o
}

func (h *writesCluster) comparesAsLeader(t *testing.T, p writePath, i int) {
	t.Helper()
	f := h.some(p, h.direct, leaderForms)[i]
	want := h.runAlone(t, p, i, h.direct, h.PG.Addr())
	got := h.runAlone(t, p, i, h.fenced, h.Addr, "options", "-c fencepost.resource=r -c fencepost.worker=w")
	if !slices.Equal(want.said, got.said) {
		t.Errorf("%s: Postgres says\n  %s\nFencepost says\n  %s", f.name, strings.Join(want.said, "\n  "), strings.Join(got.said, "\n  "))
	}
	if d := difference(want.around, got.around); d != "" || !want.within.is(got.within) {
		t.Errorf("%s: Postgres (+) and Fencepost (-) do not do the same:\n%s%s", f.name, d, difference(h.within(t, h.direct), h.within(t, h.fenced)))
	}
	refused := slices.ContainsFunc(want.said, func(s string) bool { return strings.HasPrefix(s, "E ") })
	if expected := p.fails || p.alone && f.inBlock; refused != expected {
		t.Errorf("%s: refused by Postgres: %v, expected: %v:\n  %s", f.name, refused, expected, strings.Join(want.said, "\n  "))
	}
	if want.changed == p.unseen && !refused && !p.temp {
		t.Errorf("%s: changed something: %v", f.name, want.changed)
	}
}
