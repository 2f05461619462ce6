package raft

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/raft/state"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// service is a cluster with a prefix that is unique to the test. Each proxy of a case reaches it
// through one node, so that its link can fail; the node is a follower at first, or becomes one.
func service(t *testing.T, c *members, db string) *electiontest.Service {
	apply := func(cmd state.Command) {
		t.Helper()
		cmd.Space = db
		var o state.Outcome
		if err := c.nodes["one"].call(within(t, patience), request{op: opApply, in: cmd}, &o); err != nil || o.Verdict != state.Done {
			t.Fatalf("%s: %+v, %v", cmd.Op, o, err)
		}
	}
	key := func(resource string) string { return db + "/" + resource }
	lease := func(resource string) (v state.View) {
		t.Helper()
		if err := c.nodes["one"].call(within(t, patience), request{op: opRead, in: readRequest{db, key(resource)}}, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	cut := *c
	cut.base.giveUp = 0 // of those whose links fail
	return &electiontest.Service{
		TTL: ttl, Death: ttl + 2*time.Second, Addr: c.base.Peers["one"], Multiplexed: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) election.Provider {
			return cut.client(t, proxy, db, link.Addr()).Database(db)
		},
		Bump: func(*testing.T) { apply(state.Command{Op: state.Mark, Marker: rand.Text(), Replace: true}) },
		Faults: []electiontest.Fault{
			{Name: "the life is ended", Do: func(_ *testing.T, resource string) {
				apply(state.Command{Op: state.End, Life: lease(resource).Lease.Life})
			}},
			{Name: "the record is overwritten", Do: func(_ *testing.T, resource string) {
				apply(state.Command{Op: state.Swap, Key: key(resource), Record: []byte("mine"), Basis: lease(resource).Lease.Touched})
			}},
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
			s := service(t, own, db)
			s.Wipe = func(*testing.T) { own.wipe() }
			return s
		}
		return service(t, shared, db)
	})
}

// TestRestores runs before the others, because three nodes each that stop and start at the same time
// would keep the machine busy.
func TestRestores(t *testing.T) {
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		own := newTestCluster(t)
		s := service(t, own, db)
		s.Backup = func(*testing.T) func(*testing.T) {
			restore := own.backup()
			return func(*testing.T) { restore() }
		}
		return s
	})
}
