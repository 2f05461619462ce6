package protocol_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// choosing makes h one in which resource "b" can be joined, under this status.
func (h *harness) choosing(status func() *fencing.Status) {
	h.join = func(n protocol.JoinNeed) (a protocol.Answer) {
		for _, name := range n.Resources {
			if name == "r" {
				a.Chosen = append(a.Chosen, protocol.Candidacy{Resource: name})
			} else {
				a.Chosen = append(a.Chosen, protocol.Candidacy{Resource: name, Incarnation: func() string { return "i" }, Status: status, Announced: status().Epoch})
			}
		}
		return a
	}
}

// TestChoosingForABlock: a worker that leads what it chooses may write, in that block only, and whatever else it leads.
func TestChoosingForABlock(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		const choose = "set local fencepost.resource = 'b'"
		h.choosing(func() *fencing.Status { return leader(4) })
		for name, own := range map[string]*fencing.Status{"leads its own": leader(9), "follows its own": follower} {
			t.Run(name, func(t *testing.T) {
				h.in(t)
				h.status.Store(own)
				h.config = func(c *protocol.Config) { c.Announced, c.Registered = own.Epoch, own.Epoch > 0 }
				last := "ZF002"
				if own.Epoch > 0 {
					last = ""
				}
				for how, send := range map[string][][]byte{
					"queries": {Q("begin"), Q(choose), Q(mine), Q("commit")}, "one text": {Q("begin; " + choose + "; " + mine + "; commit")}, "a pipeline": {Cat(Q("begin"), Q(choose), Q(mine), Q("commit"))},
					"two texts": {Q("begin"), Q(choose + "; " + mine + "; commit")}, "batches": {Batch(Run("begin")), Batch(Run(choose)), Batch(Run(mine)), Batch(Run("commit"))},
					"one batch": {Batch(Run("begin"), Run(choose), Run(mine), Run("commit"))}, "prepared": {Batch(Parse("c", choose)), Q("begin"), Batch(Bind("", "c"), Exec("", 0)), Q(mine), Q("commit")},
					"behind a DO": {Q("begin"), Q(choose), Q("do 'begin end'"), Q(mine), Q("commit")},
				} {
					h.exec("truncate t")
					c := h.connect()
					for _, m := range send {
						for _, code := range each(c, m) {
							if code != "" {
								t.Errorf("%s: %q is answered by %s", how, m, code)
							}
						}
					}
					if got := each(c, Q(mine)); got[0] != last || h.rows(t) != map[bool]int{true: 2, false: 1}[last == ""] {
						t.Errorf("%s: what follows is answered by %q, %d rows", how, got, h.rows(t))
					}
				}
			})
		}
	})
}
