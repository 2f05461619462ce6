package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/handover"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// worker is a connection of a worker that is there, and does nothing else.
type worker struct{}

func (*worker) Activity() (uint64, bool) { return 0, true }
func (*worker) StatusChanged()           {}
func (*worker) EpochEnds(fencing.Epoch)  {}

// elections returns a proxy's elections as the program has them, without the proxy. The leases have the
// default settings with this TTL. wrap may replace the lease service.
func elections(t testing.TB, server *pgtest.Server, ttl time.Duration, wrap func(*postgres.Provider) election.Provider) *election.Elections {
	t.Helper()
	set := election.DefaultSettings()
	set.TTL = ttl
	e, err := election.New(election.Config{
		Open:     func(ctx context.Context, db string) (election.Backend, error) { return backend(ctx, server, db, wrap) },
		Settings: func(string, string) election.Settings { return set },
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func backend(ctx context.Context, server *pgtest.Server, db string, wrap func(*postgres.Provider) election.Provider) (election.Backend, error) {
	st, err := store.Open(ctx, store.Config{Address: server.Addr(), Database: db, User: pgtest.Control, PresenceID: rand.Text()[:16]})
	if err != nil {
		return election.Backend{}, err
	}
	provider, err := postgres.New(postgres.Config{Pool: st.Pool()})
	if err != nil {
		st.Close()
		return election.Backend{}, err
	}
	return election.Backend{
		Fence:    func(ctx context.Context, name string) (election.Fence, error) { return st.Fence(ctx, name) },
		Provider: wrap(provider), Catalog: st, Orders: st.Orders, InForce: st.InForce, Fences: st.Fences,
		Handovers: handover.New(st.Pool(), "proxy"), Presence: st, CloseIdle: st.CloseIdle, Close: st.Close,
	}, nil
}

// lead lets a worker campaign for each of n resources, and returns their candidacies.
func lead(t testing.TB, e *election.Elections, db, name string, n int) []fencing.Candidacy {
	t.Helper()
	all := make([]fencing.Candidacy, n)
	turns := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range all {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			var err error
			all[i], err = e.Join(context.Background(), fencing.JoinRequest{
				Database: db, User: pgtest.App, Resource: fmt.Sprint("r-", i), Worker: name,
				Client: netip.MustParseAddr("192.0.2.1"), WorkerTimeout: -1,
			}, &worker{})
			if err != nil {
				t.Errorf("join resource %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all
}

// awaitLeads waits until all of the candidacies lead.
func awaitLeads(t testing.TB, all []fencing.Candidacy, within time.Duration) {
	t.Helper()
	for i, deadline := 0, time.Now().Add(within); i < len(all); {
		switch {
		case all[i].Status().CanWrite():
			i++
		case time.Now().After(deadline):
			t.Fatalf("candidacy %d of %d does not lead: %+v", i, len(all), *all[i].Status())
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
}
