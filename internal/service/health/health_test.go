package health

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// TestALeaseServiceThatCannotBeWatchedIsTriedAtTheNextLook: without workers, nothing else shows that it is gone.
func TestALeaseServiceThatCannotBeWatchedIsTriedAtTheNextLook(t *testing.T) {
	t.Parallel()
	var unwatched, denied error
	tries := 0
	c := New(Config{
		Faults: faults.NewRegister(zap.NewNop(), 0), Watched: func() error { return unwatched },
		Leases: func(context.Context) error { tries++; return denied },
	})
	want := func(when string, tried, lasting int) {
		t.Helper()
		c.lookAtLeases(t.Context(), false)
		if got := len(c.cfg.Faults.Active()); tries != tried || got != lasting {
			t.Errorf("%s: tried %d times, with %d faults; want %d and %d", when, tries, got, tried, lasting)
		}
	}
	want("at first", 1, 0)
	want("soon after", 1, 0)
	unwatched, denied = errors.New("no answer"), errors.New("no answer")
	want("when the watch has failed", 2, 1)
	unwatched, denied = nil, nil
	want("when it works again", 3, 0)
	want("soon after that", 3, 0)
	c.leasesAt = time.Now().Add(-leaseEvery)
	want("a minute later", 4, 0)
}

// TestADatabaseThatAnswersNothingHidesNoOther: any role of a database can keep all others from its catalog, so that who
// logs in there waits. The others are as ready as before.
func TestADatabaseThatAnswersNothingHidesNoOther(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	locked, free := s.Database(t), s.Database(t)
	register := faults.NewRegister(zap.NewNop(), 0)
	c := New(Config{Faults: register, Home: "postgres", Control: store.Config{Address: s.Addr(), User: pgtest.Control}})
	defer s.LockAway(t, locked, "pg_proc")()
	if !c.login(t.Context(), []string{locked, free}, nil) || !c.LoggedIn() {
		t.Error("the control role cannot log in")
	}
	if found := register.Active(); len(found) != 0 {
		t.Errorf("the faults are %+v", found)
	}
}

// TestADatabaseThatNobodyUsesHasNoOpenConnection: one would keep an administrator from dropping it.
func TestADatabaseThatNobodyUsesHasNoOpenConnection(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	database := s.Database(t)
	control := store.Config{Address: s.Addr(), Database: database, User: pgtest.Control}
	st, err := store.Open(t.Context(), control)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	resource := status.Resource{Database: database}
	c := New(Config{
		Control: control, Open: func() map[string]*store.Store { return map[string]*store.Store{database: st} },
		Resources: func() []status.Resource { return []status.Resource{resource} },
		Record:    func(ctx context.Context, _ string, conn *pgx.Conn) error { return conn.Ping(ctx) },
	})
	for workers := range 2 {
		resource.Candidacies = make([]status.Candidacy, workers)
		before := st.Pool().Stat().AcquireCount()
		if err := c.Record(t.Context(), database); err != nil {
			t.Fatal(err)
		}
		if used := st.Pool().Stat().AcquireCount() - before; used != int64(workers) {
			t.Errorf("with %d workers: the pool was used %d times", workers, used)
		}
	}
}
