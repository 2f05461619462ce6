package system

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/anyone"
	"github.com/fencepost/fencepost/election/postgres"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

// TestSafetyAFalseDetector checks that two workers never write at the same time although what
// is said of their liveness is made up: leaders lose the lease in the middle of their work, and
// keep it while they are frozen.
func TestSafetyAFalseDetector(t *testing.T) {
	t.Parallel()
	c := prepareChaos(t, "postgres")
	c.params = []string{"worker_timeout", "0", "heartbeat", "100ms"} // sampled often, and never judged truly
	for i := range uint64(2) {
		c.proxies = append(c.proxies, c.falsified(i))
	}
	c.hireAll()
	outlasted := fault{"the leader is frozen until another worker leads", (*chaos).outlast}
	c.runUntilSuperseded(12*time.Second, []fault{workerFaults[0], outlasted, outlasted, workerFaults[3]})
	t.Logf("%d epochs were granted", c.epoch())
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

// takeovers is how many TestSafetyTheWorstElector waits for, and takeoverTime for how long at most,
// which is several times what they take.
const (
	takeovers    = 150
	takeoverTime = 15 * time.Minute
)

// TestSafetyTheWorstElector checks that two workers never write at the same time although everybody
// who asks is awarded the lease, no lease ever ends, and no proxy is told of another's grants. Each
// worker has a proxy of its own, so that nothing keeps it from asking.
func TestSafetyTheWorstElector(t *testing.T) {
	t.Parallel()
	c := prepareChaos(t, "anyone")
	c.params, c.pinned = []string{"worker_timeout", "0"}, true
	for range 4 {
		c.proxies = append(c.proxies, c.inProcess(zap.NewNop(), c.openToAnyone, nil))
	}
	c.hireAll()
	took := func() int {
		return ask[int](c.cluster, "SELECT count(*) FROM (SELECT worker <> lag(worker) OVER (ORDER BY epoch) AS another FROM fencepost.grants) AS g WHERE another")
	}
	began, end := time.Now(), time.Now().Add(takeoverTime)
	if !fencing.Checking { // nobody is superseded, so nobody asks again
		end = time.Now().Add(12 * time.Second)
	}
	for took() < takeovers && time.Now().Before(end) {
		c.wait(200*time.Millisecond, time.Second)
		workerFaults[0].do(c) // a frozen worker's next write is late
	}
	n := took()
	t.Logf("%d takeovers in %s", n, time.Since(began).Round(time.Second))
	c.finish()
	if fencing.Checking && n < takeovers {
		t.Errorf("there were %d takeovers in %s, want %d", n, takeoverTime, takeovers)
	}
	if fencing.Checking && c.r.refusals(fencing.StateSuperseded) < takeovers/10 {
		t.Errorf("only %d statements were refused because the worker was superseded", c.r.refusals(fencing.StateSuperseded))
	}
}

// openToAnyone opens the fence of a database, without anything by which a proxy could learn of
// another's grants before a check fails.
func (c *chaos) openToAnyone(ctx context.Context, database string) (election.Backend, error) {
	db, err := c.fences(ctx, database, 50*time.Millisecond)
	if err != nil {
		return election.Backend{}, err
	}
	return election.Backend{Fence: fenceOf(db), Catalog: db, Provider: anyone.New(db.Pool()), Close: db.Close}, nil
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
	return c.inProcess(zaptest.NewLogger(c.t), c.backend, d.verdict)
}

// inProcess starts a proxy in this process, with elections that no configuration can have.
func (c *chaos) inProcess(log *zap.Logger, open func(context.Context, string) (election.Backend, error), falsify func(worker string) bool) *process.Server {
	c.t.Helper()
	set := election.DefaultSettings()
	e, err := election.New(election.Config{
		Open: open, Logger: log, Falsify: falsify,
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
	cfg := proxy.Config{Upstream: fixture.At(c.t, c.pg.Addr(), nil), Candidates: e, StartupWait: 500 * time.Millisecond, Logger: log}
	_, address := fixture.Serve(c.t, cfg)
	return &process.Server{Address: address}
}

// fences opens the fences of a database, with the grace of its grants.
func (c *chaos) fences(ctx context.Context, database string, grace time.Duration) (*fence.Database, error) {
	return fence.Open(ctx, fence.Config{Config: store.Config{Address: c.pg.Addr(), Database: database, User: pgtest.Control}, Grace: grace})
}

func fenceOf(db *fence.Database) func(context.Context, string) (election.Fence, error) {
	return func(ctx context.Context, name string) (election.Fence, error) { return db.Fence(ctx, name) }
}

// backend opens the fence and the leases of a database.
func (c *chaos) backend(ctx context.Context, database string) (election.Backend, error) {
	db, err := c.fences(ctx, database, 200*time.Millisecond)
	if err != nil {
		return election.Backend{}, err
	}
	leases, err := postgres.New(postgres.Config{Pool: db.Pool()})
	if err != nil {
		db.Close()
		return election.Backend{}, err
	}
	orders := operator.New(db)
	return election.Backend{
		Fence: fenceOf(db), Catalog: db, Provider: leases, Orders: orders.Orders, InForce: orders.InForce, Close: db.Close,
	}, nil
}
