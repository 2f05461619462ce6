package safety

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/migrations"
)

// TestSafetyARecreatedSchemaFencesOldSessions: the schema is dropped and made anew below a
// leader, and another worker is granted the same resource there, under the same epoch. The session of the
// leader ends as soon as its proxy has compared it with the registry.
func TestSafetyARecreatedSchemaFencesOldSessions(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"outside", "in a block"} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			s := fixture.NewCluster(t, pgtest.Shared(t))
			leader := s.Leader("w")
			fixture.MustPass(t, leader, Q(mine))
			if in != "outside" {
				fixture.MustPass(t, leader, Q("begin"))
			}
			s.Exec("drop schema fencepost cascade")
			ctx := t.Context()
			control := s.PG.Connect(t, pgtest.Superuser, s.DB)
			if _, err := migrations.Up(ctx, control, migrations.Options{Control: pgtest.Control}); err != nil {
				t.Fatal(err)
			}
			if epoch := grantAnew(t, s); epoch != 1 {
				t.Fatalf("the first epoch of the new schema is %d", epoch)
			}
			// The new registry does not have the old session, which ends at the next comparison.
			if f := fixture.FatalError(t, leader.Rest()); f['C'] != "ZF004" {
				t.Errorf("the session of the old schema ends with %v, want ZF004", f)
			}
		})
	}
}

// TestSafetyFenceRowsDeletedByHand: the resource's row is made again under another number, and the registry has the old
// leader's backend under a number without a row. A grant ends that backend, and where there is none, its proxy does.
func TestSafetyFenceRowsDeletedByHand(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"DELETE FROM fencepost.grants; DELETE FROM fencepost.fence", "TRUNCATE fencepost.fence CASCADE"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := fixture.NewCluster(t, pgtest.Shared(t))
			leader := s.Leader("w")
			fixture.MustPass(t, leader, Q("begin"))
			fixture.MustPass(t, leader, Q(mine))
			s.Exec(how)
			if epoch := grantAnew(t, s); epoch != 1 {
				t.Fatalf("the first epoch of the new row is %d", epoch)
			}
			if n := pgtest.Ask[int](t, s.PG, s.DB, "select count(*)::int from pg_stat_activity where usename = '"+pgtest.App+"' and datname = current_database()"); n != 0 {
				t.Errorf("%d backends are left after the grant", n)
			}
			fixture.FatalError(t, leader.Rest()) // its proxy may have noticed first
		})
		t.Run("no grant, "+how, func(t *testing.T) {
			t.Parallel()
			s := fixture.NewCluster(t, pgtest.Shared(t))
			leader := s.Leader("w")
			s.Exec(how)
			if f := fixture.FatalError(t, leader.Rest()); f['C'] != "ZF004" {
				t.Errorf("the session without a row ends with %v, want ZF004", f)
			}
		})
	}
}

// grantAnew grants another worker an epoch of resource r in the database as it is now.
func grantAnew(t *testing.T, s *fixture.Cluster) fencing.Epoch {
	t.Helper()
	st := fixture.OpenStore(t, fence.Config{Config: store.Config{Address: s.PG.Addr(), Database: s.DB, User: pgtest.Control}})
	defer st.Close()
	epoch, err := s.Elector.NewCandidacy(s.DB, "other", fixture.Fence(t, st, "r")).TryGrant()
	if err != nil {
		t.Fatal(err)
	}
	return epoch
}
