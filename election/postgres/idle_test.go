package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/handover"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// worker is a connection of an idle worker.
type worker struct{}

func (*worker) Activity() (uint64, bool) { return 0, true }
func (*worker) StatusChanged()           {}
func (*worker) EpochEnds(fencing.Drain)  {}

// elections returns a proxy's elections as the program has them, without the proxy. The leases have the
// default settings with this TTL. wrap may replace the lease service.
func elections(t testing.TB, server *pgtest.Server, ttl time.Duration, wrap func(*postgres.Provider) elector.Provider) *election.Elections {
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

func itself(p *postgres.Provider) elector.Provider { return p }

func backend(ctx context.Context, server *pgtest.Server, db string, wrap func(*postgres.Provider) elector.Provider) (election.Backend, error) {
	fences, err := fence.Open(ctx, fence.Config{Config: store.Config{Address: server.Addr(), Database: db, User: pgtest.Control, PresenceID: rand.Text()[:16]}})
	if err != nil {
		return election.Backend{}, err
	}
	provider, err := postgres.New(postgres.Config{Pool: fences.Pool()})
	if err != nil {
		fences.Close()
		return election.Backend{}, err
	}
	orders := operator.New(fences)
	return election.Backend{
		Fence:    func(ctx context.Context, name string) (election.Fence, error) { return fences.Fence(ctx, name) },
		Provider: wrap(provider), Catalog: fences, Orders: orders.Orders, InForce: orders.InForce, Fences: fences.Fences,
		Handovers: handover.New(fences.Pool(), "proxy", "presence"), Presence: fences, CloseIdle: fences.CloseIdle, Close: fences.Close,
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

// usage is what a database and two groups of processes have used so far.
type usage struct {
	at              time.Time
	statements      int64
	proxy, postgres time.Duration // of processors
}

func used(t testing.TB, server *pgtest.Server, db string) usage {
	t.Helper()
	n := pgtest.Ask[int64](t, server, "postgres", "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1", db)
	return usage{time.Now(), n, ownProcessors(t), processors(t, server.PID())}
}

// ownProcessors returns how much processor time the program has used.
func ownProcessors(t testing.TB) time.Duration {
	t.Helper()
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		t.Fatal(err)
	}
	return time.Duration(self.Utime.Nano() + self.Stime.Nano())
}

// processors returns how much processor time a process and its children have used, those included that
// have ended.
func processors(t testing.TB, pid int) (sum time.Duration) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		own := filepath.Base(filepath.Dir(path)) == strconv.Itoa(pid)
		if !own && fields[1] != strconv.Itoa(pid) {
			continue
		}
		times := fields[11:13] // utime, stime
		if own {
			times = fields[11:15] // and those of its children that have ended
		}
		for _, field := range times {
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += time.Duration(ticks) * time.Second / 100
		}
	}
	return sum
}

// memory returns what the program has allocated and not given up.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// BenchmarkIdle prints what leading costs while nothing happens.
func BenchmarkIdle(b *testing.B) {
	const rest, measured = 15 * time.Second, 20 * time.Second
	for _, n := range []int{1, 200, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server := pgtest.Start(b)
			db := server.Database(b)
			e := elections(b, server, election.DefaultTTL, itself)
			before := memory()
			all := lead(b, e, db, "worker", n)
			awaitLeads(b, all, time.Minute)
			time.Sleep(rest)
			for b.Loop() {
				first := used(b, server, db)
				proxy := ownProcessors(b) // without what the look at the others costs
				time.Sleep(measured)
				proxy = ownProcessors(b) - proxy
				last := used(b, server, db)
				took := last.at.Sub(first.at).Seconds()
				b.ReportMetric(float64(last.statements-first.statements)/took, "statements/s")
				b.ReportMetric(100*proxy.Seconds()/measured.Seconds(), "%core-proxy")
				b.ReportMetric(100*(last.postgres-first.postgres).Seconds()/took, "%core-postgres")
			}
			b.ReportMetric(float64(memory()-before)/1024/float64(n), "KB/resource")
			if err := e.Close(context.Background()); err != nil {
				b.Error(err)
			}
		})
	}
}

// mortal is the lease service as a proxy sees it that can die: then it asks for nothing any more, and releases
// nothing.
type mortal struct {
	*postgres.Provider
	dead *atomic.Bool
}

var errDead = errors.New("this proxy is dead")

func (m mortal) Acquire(ctx context.Context, bid elector.AcquireRequest) (*elector.Lease, error) {
	if m.dead.Load() {
		return nil, errDead
	}
	return m.Provider.Acquire(ctx, bid)
}

func (m mortal) Renew(ctx context.Context, l *elector.Lease) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Provider.Renew(ctx, l)
}

func (m mortal) Release(ctx context.Context, l *elector.Lease, why elector.Reason, silent time.Duration) error {
	if m.dead.Load() {
		return errDead
	}
	return m.Provider.Release(ctx, l, why, silent)
}

// BenchmarkDeadProxy prints how long after the death of a proxy that led many resources these are led again,
// by the workers that wait at another one.
func BenchmarkDeadProxy(b *testing.B) {
	for _, n := range []int{40, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			server := pgtest.Start(b)
			db := server.Database(b)
			for b.Loop() {
				var dead atomic.Bool
				one := elections(b, server, election.DefaultTTL, func(p *postgres.Provider) elector.Provider { return mortal{p, &dead} })
				two := elections(b, server, election.DefaultTTL, itself)
				awaitLeads(b, lead(b, one, db, "leader", n), time.Minute)
				waiting := lead(b, two, db, "waiter", n)
				first, died := used(b, server, db), time.Now()
				dead.Store(true)
				ended, end := context.WithCancel(context.Background())
				end()
				if err := one.Close(ended); err == nil {
					b.Error("the dead proxy has released its leases")
				}
				for !slices.ContainsFunc(waiting, func(c fencing.Candidacy) bool { return c.Status().CanWrite() }) {
					time.Sleep(time.Millisecond)
				}
				b.ReportMetric(time.Since(died).Seconds(), "s-to-first")
				awaitLeads(b, waiting, time.Minute)
				b.ReportMetric(time.Since(died).Seconds(), "s-to-last")
				last := used(b, server, db)
				b.ReportMetric((last.proxy - first.proxy).Seconds(), "core-s-proxy")
				b.ReportMetric((last.postgres - first.postgres).Seconds(), "core-s-postgres")
				if err := two.Close(context.Background()); err != nil {
					b.Error(err)
				}
			}
		})
	}
}
