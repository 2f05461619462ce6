package raft

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/election/standstill"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// conformed is a cluster with a prefix that is unique to the test. Each proxy of a case reaches it
// through one node, so that its link can fail; the node is a follower at first, or becomes one.
func conformed(t *testing.T, c *members, db string) *electiontest.Service {
	apply := func(cmd state.Command) {
		t.Helper()
		cmd.Space = db
		if _, err := c.apply(within(t, patience), cmd); err != nil {
			t.Fatalf("%s: %v", cmd.Op, err)
		}
	}
	operator := service{nodes: c.all, space: db, name: "raft"}
	overwrite := func(change func(r *standstill.Record)) func(*testing.T, string) {
		return func(t *testing.T, resource string) {
			old, _, err := operator.Get(within(t, patience), db+"/"+resource)
			if err != nil || old == nil {
				t.Fatalf("the record is %+v, %v", old, err)
			}
			r := old.Record
			change(&r)
			if _, err := operator.Put(within(t, patience), old, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	cut := *c
	cut.base.patience = 0 // of those whose links fail
	return &electiontest.Service{
		TTL: ttl, Death: ttl + 2*time.Second, Addr: c.base.Peers["one"], Multiplexed: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return cut.client(t, proxy, db, link.Addr()).Database(db)
		},
		Bump: func(*testing.T) { apply(state.Command{Op: state.Mark, Marker: rand.Text(), Replace: true}) },
		Faults: []electiontest.Fault{
			{Name: "the holder is removed", Do: overwrite(func(r *standstill.Record) { r.Life, r.Write = "", "operator" })},
			{Name: "the record is overwritten", Do: overwrite(func(r *standstill.Record) { *r = standstill.Record{Key: r.Key, Text: []byte("1"), Write: "operator"} })},
			{Name: "another node leads", Do: func(t *testing.T, _ string) {
				c.transfer(t)
			}},
		},
	}
}

// Wipe and Backup need a cluster of the case's own.
func TestConformance(t *testing.T) {
	t.Parallel()
	shared := newTestCluster(t)
	electiontest.Run(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		if strings.HasSuffix(t.Name(), "/a_service_that_has_lost_its_data_goes_on_at_once") {
			own := newTestCluster(t)
			s := conformed(t, own, db)
			s.Wipe = func(*testing.T) { own.wipe() }
			return s
		}
		return conformed(t, shared, db)
	})
}

// TestRestores runs before the others, because three nodes each that stop and start at the same time
// would keep the machine busy.
func TestRestores(t *testing.T) {
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		own := newTestCluster(t)
		s := conformed(t, own, db)
		s.Backup = func(*testing.T) func(*testing.T) {
			restore := own.backup()
			return func(*testing.T) { restore() }
		}
		return s
	})
}
