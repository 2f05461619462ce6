package system

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// TestSafetyAFalseDetector checks that two workers never write at the same time although what
// is said of their liveness is made up: leaders lose the lease in the middle of their work, and
// keep it while they are frozen.
func TestSafetyAFalseDetector(t *testing.T) {
	t.Parallel()
	c := prepareChaos(t, "postgres", nil)
	c.params = []string{"worker_timeout", "0", "heartbeat", "100ms"} // sampled often, and never judged truly
	for i := range uint64(2) {
		c.proxies = append(c.proxies, c.falsified(i))
	}
	c.hireAll()
	outlasted := fault{"the leader is frozen until another worker leads", (*chaos).outlast}
	c.run(12*time.Second, []fault{workerFaults[0], outlasted, outlasted, workerFaults[3]})
	t.Logf("%d epochs were granted", c.epoch())
	if fencing.Checking && c.r.refusals(fencing.StateSuperseded) == 0 {
		t.Error("no worker was superseded, so the run proves nothing")
	}
}

// outlast freezes the leader until another worker has been granted an epoch, so that what it
// does next is late. Nobody takes its lease away but the detector.
func (c *chaos) outlast() {
	w, epoch := c.leader(), c.epoch()
	if w == nil {
		return
	}
	c.r.note("freeze %s", w.name)
	w.Freeze(c.t)
	defer w.Thaw(c.t)
	if !process.Holds(process.Patience, func() bool { return c.epoch() > epoch }) {
		c.t.Errorf("nobody took over from %s, which is frozen", w.name)
	}
}

// falseDetector says at random of each worker whether it is unresponsive, for some time.
type falseDetector struct {
	mu    sync.Mutex
	rand  *rand.Rand
	until map[string]time.Time
	says  map[string]bool
}

func (d *falseDetector) verdict(worker string) (unresponsive bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); now.After(d.until[worker]) {
		d.says[worker] = d.rand.IntN(3) == 0
		d.until[worker] = now.Add(20*time.Millisecond + time.Duration(d.rand.Int64N(int64(400*time.Millisecond))))
	}
	return d.says[worker]
}

// falsified starts a proxy in this process whose elections have a false detector. What is
// returned knows only its address: a process cannot be given such a detector.
func (c *chaos) falsified(place uint64) *process.Server {
	c.t.Helper()
	d := &falseDetector{rand: rand.New(rand.NewPCG(c.rand.Uint64(), place)), until: map[string]time.Time{}, says: map[string]bool{}}
	set := election.DefaultSettings()
	e, err := election.New(election.Config{
		Open: c.backend, Logger: zaptest.NewLogger(c.t), Falsify: d.verdict,
		Settings: func(string, string) election.Settings { return set },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			c.t.Errorf("close the elections: %v", err)
		}
	})
	cfg := proxy.Config{Upstream: fixture.At(c.t, c.pg.Addr(), nil), Candidates: e, StartupWait: 500 * time.Millisecond, Logger: zaptest.NewLogger(c.t)}
	if fencing.Checking {
		cfg.Observe = func(o proxy.Observed) proxy.Observer {
			return oracle.New(oracle.Facts(o), func(complaint string) { c.t.Error(complaint) })
		}
	}
	_, address := fixture.Serve(c.t, cfg)
	return &process.Server{Address: address}
}

// backend opens the fence and the leases of a database.
func (c *chaos) backend(ctx context.Context, database string) (election.Backend, error) {
	st, err := store.Open(ctx, store.Config{Address: c.pg.Addr(), Database: database, User: pgtest.Control, Grace: 200 * time.Millisecond})
	if err != nil {
		return election.Backend{}, err
	}
	leases, err := postgres.New(postgres.Config{Pool: st.Pool()})
	if err != nil {
		st.Close()
		return election.Backend{}, err
	}
	return election.Backend{
		Fence:   func(ctx context.Context, name string) (election.Fence, error) { return st.Fence(ctx, name) },
		Catalog: st, Provider: leases, Guarded: st.Guarded, Orders: st.Orders, InForce: st.InForce, Close: st.Close,
	}, nil
}
