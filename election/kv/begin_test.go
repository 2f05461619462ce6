package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/own"
)

// distant answers an End after a second.
type distant struct {
	*memory
	ending, most atomic.Int64
}

func (d *distant) End(ctx context.Context, life string) error {
	d.most.Store(max(d.most.Load(), d.ending.Add(1)))
	defer d.ending.Add(-1)
	select {
	case <-time.After(time.Second):
		return d.memory.End(ctx, life)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestManyOldLeasesAreEndedAtOnce: a proxy that starts ends what it has left, and nobody else's.
func TestManyOldLeasesAreEndedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.marker = newMarker()
		for i := range 40 {
			award(t, m, "db", fmt.Sprint("r", i), "one")
		}
		others := award(t, m, "db", "of another proxy", "two")
		core, log := observer.New(zap.WarnLevel)
		d := &distant{memory: m}
		c, err := New(Config{Store: d, Source: "memory", Proxy: "one", Logger: zap.New(core)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		began := time.Now()
		mustAcquire(t, c.Database("db"), "a")
		if took := time.Since(began); took > 4*time.Second || m.living() != 2 || !m.lives[others] {
			t.Errorf("it took %v, and %d lives go on; want the new one and that of another proxy", took, m.living())
		}
		if d.most.Load() > endsAtOnce {
			t.Errorf("%d were ended at once", d.most.Load())
		}
		for _, line := range log.All() {
			if strings.Contains(line.Message, "cannot watch") {
				t.Errorf("%s: %v", line.Message, line.ContextMap())
			}
		}
	})
}

// award awards a lease to a worker of the proxy, whose presence id is of-NAME.
func award(t *testing.T, m *memory, database, resource, proxy string) (life string) {
	t.Helper()
	b := bid("a")
	b.Resource, b.Incarnation = resource, own.Incarnation("of-"+proxy, "app", "a")
	begun, err := m.Begin(t.Context(), b.TTL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Swap(t.Context(), keyOf(database, b.Resource), Entry{Marker: m.marker}, recordOf(b, proxy, time.Now()).encode(), begun.ID); err != nil {
		t.Fatal(err)
	}
	return begun.ID
}

// TestNoLeaseOfAProxyThatRunsIsEnded: a proxy whose name another one uses ends no lease and takes none until that has
// ended. Of one that was killed, the server may know for a moment longer.
func TestNoLeaseOfAProxyThatRunsIsEnded(t *testing.T) {
	for _, c := range []struct {
		name  string
		runs  time.Duration
		waits bool
	}{{"killed", time.Second, false}, {"running", time.Minute, true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				m.marker = newMarker()
				life, began := award(t, m, "the/db", "r", "one"), time.Now()
				denied := &election.DeniedError{Err: errors.New("it runs")}
				client, err := New(Config{Store: m, Source: "memory", Proxy: "one", Runs: func(_ context.Context, database, presenceID string) error {
					switch {
					case database != "the/db" || presenceID != "of-one":
						return fmt.Errorf("asked about %q of %q", presenceID, database)
					case time.Since(began) < c.runs:
						return denied
					default:
						return nil
					}
				}})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = client.Close() }()
				_, err = client.Database("db").Acquire(within(t, patience), bid("b"))
				if waits := errors.Is(err, denied); waits != c.waits || err != nil && !waits || m.lives[life] != c.waits {
					t.Fatalf("the first request: %v, and the old life goes on: %v", err, m.lives[life])
				}
				if c.waits && !errors.Is(client.Healthy(), denied) {
					t.Errorf("healthy: %v", client.Healthy())
				}
				for ; client.begins(); time.Sleep(time.Second) {
					if time.Since(began) > 2*c.runs+followFor {
						t.Fatal("the proxy does not begin when the other one has ended")
					}
				}
				mustAcquire(t, client.Database("db"), "b")
			})
		})
	}
}
