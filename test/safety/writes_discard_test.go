package safety

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// discarding is the resource of the writes cluster whose stale writes are discarded.
const discarding = "discarding"

func discards(r fencing.JoinRequest) (p proxy.SessionPolicy) {
	if r.Resource == discarding {
		p.OnStale = proxy.DiscardStale
	}
	return p
}

var (
	discardable = regexp.MustCompile(`^(?:with .*\) )?(?:insert|update|delete|merge) `)
	changed     = regexp.MustCompile(`^(?:INSERT 0|UPDATE|DELETE|MERGE) [1-9]`)
)

// TestSafetyWritePathsUnderDiscard: a worker that led, and has been superseded since without its
// proxy knowing, changes nothing in any way where stale writes are discarded. What a single
// statement says that it writes is answered as if it had changed nothing, the rest is refused,
// and the session goes on.
func TestSafetyWritePathsUnderDiscard(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		h.eachPath(func(t *testing.T, p writePath) {
			forms := slices.DeleteFunc(h.some(p, h.fenced, refusedForms), func(f form) bool { return f.readOnly })
			h.unchanged(t, p, func() func() {
				conns := h.ledDiscarding(t, p, forms)
				return func() { h.discarded(t, p, forms, conns) }
			})
			if len(p.before) > 0 {
				h.reset(t, h.fenced)
			}
		})
	})
}

// ledDiscarding opens a connection per form, each of a worker that led and does no more.
func (h *writesCluster) ledDiscarding(t *testing.T, p writePath, forms []form) (conns []*wiretest.Conn) {
	t.Helper()
	for i, f := range forms {
		worker := fmt.Sprintf("w%d.%d", i, h.Elector.Next())
		h.Elector.Enter(h.fenced.db, discarding, worker).Grant()
		c, _ := wiretest.Connect(t, h.Addr, h.params(p, h.fenced, "fencepost.resource", discarding, "fencepost.worker", worker)...)
		before, ended := sendPieces(t, c, append(queries(p.before, func(sql string) string { return h.fill(sql, h.fenced) }), f.first...)...)
		if state := wiretest.ErrorOf(before); state != "" || ended {
			t.Fatalf("%s: what comes before fails: %v", f.name, before)
		}
		conns = append(conns, c)
	}
	h.Elector.Enter(h.fenced.db, discarding, fmt.Sprintf("successor%d", h.Elector.Next())).Grant()
	return conns
}

// discarded runs each form on its connection, whose worker was superseded.
func (h *writesCluster) discarded(t *testing.T, p writePath, forms []form, conns []*wiretest.Conn) {
	t.Helper()
	single := p.call == nil && !slices.ContainsFunc(p.sql, func(sql string) bool { return !discardable.MatchString(sql) })
	for i, f := range forms {
		all, ended := sendPieces(t, conns[i], f.pieces...)
		got, lines := wiretest.ErrorOf(all), transcriptOf(all, ended, h.fenced.db)
		wrong := ended || got != "" && got != "ZF001" || strings.Contains(fmt.Sprint(all), "FATAL")
		if single && !strings.HasPrefix(f.name, "one text") {
			wrong = wrong || got != ""
		}
		for _, m := range all {
			wrong = wrong || m.Type == 'C' && changed.Match(m.Body)
		}
		if wrong {
			t.Errorf("%s: want no change or ERROR ZF001, got\n  %s", f.name, strings.Join(lines, "\n  "))
		}
		if rest, over := sendPieces(t, conns[i], Q("rollback"), Q("select 1")); over || wiretest.ErrorOf(rest) != "" {
			t.Errorf("%s: the connection is of no use any more: %v", f.name, rest)
		}
		leaveNow(conns[i])
	}
}
