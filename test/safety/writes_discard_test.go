package safety

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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

// TestSafetyWritePathsUnderDiscard: a worker that led, and has been superseded since, changes nothing in any way
// where stale writes are discarded. From 16 on, what a single statement says that it writes is answered as if it had
// changed nothing. The rest is refused, and the session goes on.
func TestSafetyWritePathsUnderDiscard(t *testing.T) {
	eachWritesCluster(t, func(h *writesCluster) {
		h.PG.DrainsPatiently(h.t, h.fenced.db)
		h.Elector.SetGrace(3 * time.Second)
		var all, ended atomic.Int64
		h.eachPath(func(t *testing.T, p writePath) {
			forms := slices.DeleteFunc(h.some(p, h.fenced, refusedForms), func(f form) bool { return f.readOnly })
			h.unchanged(t, p, func() func() {
				conns := h.ledDiscarding(t, p, forms)
				return func() {
					all.Add(int64(len(forms)))
					ended.Add(h.discarded(t, p, forms, conns))
				}
			})
			if len(p.before) > 0 {
				h.reset(t, h.fenced)
			}
		})
		if ended.Load() > all.Load()/4 {
			t.Errorf("the grants have ended %d of %d sessions at rest, which are to go on", ended.Load(), all.Load())
		}
	})
}

// ledDiscarding opens a connection per form, each of a worker that led and does no more.
func (h *writesCluster) ledDiscarding(t *testing.T, p writePath, forms []form) (conns []*wiretest.Conn) {
	t.Helper()
	for i, f := range forms {
		worker := fmt.Sprintf("w%d.%d", i, h.Elector.Next())
		h.Elector.Enter(h.fenced.db, discarding, worker).Grant()
		c, _ := wiretest.Connect(t, h.Addr, h.params(p, h.fenced, "fencepost.resource", discarding, "fencepost.worker", worker)...)
		before, ended := sendPieces(t, c, queries(p.before, func(sql string) string { return h.fill(sql, h.fenced) })...)
		if state := wiretest.ErrorOf(before); state != "" || ended {
			t.Fatalf("%s: what comes before fails: %v", f.name, before)
		}
		conns = append(conns, c)
	}
	h.Elector.Enter(h.fenced.db, discarding, fmt.Sprintf("successor%d", h.Elector.Next())).Grant()
	return conns
}

// discarded runs each form on its connection, whose worker was superseded. It returns how many connections the grant has
// ended, because the proxy was held up for 250 ms.
func (h *writesCluster) discarded(t *testing.T, p writePath, forms []form, conns []*wiretest.Conn) (byGrant int64) {
	t.Helper()
	single := h.major >= 16 && p.call == nil && !slices.ContainsFunc(p.sql, func(sql string) bool {
		return !discardable.MatchString(sql) || strings.Contains(sql, `\'`) // which is not read
	})
	for i, f := range forms {
		all, ended := sendPieces(t, conns[i], slices.Concat(f.first, f.pieces)...)
		got, lines := wiretest.ErrorOf(all), transcriptOf(all, ended, h.fenced.db)
		if ended && got == "ZF001" && len(all) == 1 {
			byGrant++
			continue
		}
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
	return byGrant
}
