package system

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
)

// chaos is one run of loads under random faults.
type chaos struct {
	*cluster
	r       *history
	rand    *rand.Rand
	proxies []*process.Server
	workers []*worker
	params  []string // of the workers' connections
	born    int      // workers started so far
	pinned  bool     // each worker knows only one proxy
}

// fault is a fault. It returns when everything is running again, but not necessarily
// recovered.
type fault struct {
	name string
	do   func(c *chaos)
}

// workerFaults do not affect the proxies or Postgres.
var workerFaults = []fault{
	{"a worker is frozen for a while", func(c *chaos) {
		w := c.anyWorker()
		w.Freeze(c.t)
		c.wait(100*time.Millisecond, 1500*time.Millisecond)
		w.Thaw(c.t)
	}},
	{"the leader is frozen and its lease taken away", func(c *chaos) { c.depose(true) }},
	{"the leader's lease is taken away", func(c *chaos) { c.depose(false) }},
	{"a worker is killed", func(c *chaos) {
		i := c.rand.IntN(len(c.workers))
		c.r.note("kill %s", c.workers[i].name)
		c.workers[i].Kill(c.t)
		c.workers[i] = c.hire(i)
	}},
}

// TestSafetyTwoProxiesAgree checks that among workers on two proxies that are frozen,
// thawed, deposed and killed at random, two never write at the same time. TestSoak does so with Consul.
func TestSafetyTwoProxiesAgree(t *testing.T) {
	t.Parallel()
	newChaos(t, "postgres").runUntilSuperseded(12*time.Second, workerFaults)
}

// newChaos starts two proxies and four workers, which use the other proxy when one
// fails.
func newChaos(t testing.TB, provider string, opts ...option) *chaos {
	t.Helper()
	c := prepareChaos(t, provider, append(opts, with("LEASE_TTL=2s"))...)
	for _, id := range []string{"one", "two"} {
		// replace starts proxies anew at the same addresses.
		c.proxies = append(c.proxies, c.proxy("PROXY_ID="+id, "LISTEN="+ports.For(t).Address(), "ADMIN="+ports.For(t).Address()))
	}
	c.hireAll()
	return c
}

// prepareChaos makes a chaos that has neither proxies nor workers yet.
func prepareChaos(t testing.TB, provider string, opts ...option) *chaos {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("FENCEPOST_CHAOS_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("FENCEPOST_CHAOS_SEED: %v", err)
		}
	}
	t.Logf("FENCEPOST_CHAOS_SEED=%d", seed)
	s := pgtest.Start(t, tracked())
	opts = append(opts, onServer(s), with("LEASE_WORKER_TIMEOUT=300ms", "STARTUP_WAIT=500ms"))
	h := newCluster(t, provider, opts...)
	s.Exec(t, pgtest.App, h.db, loadSchema)
	if provider == "postgres" { // with the other, the table has no guard, as most have
		h.stamp("entries")
	}
	return &chaos{cluster: h, r: newHistory(t), rand: rand.New(rand.NewPCG(seed, 0)), params: []string{"worker_timeout", "300ms"}}
}

// hireAll starts the workers.
func (c *chaos) hireAll() {
	for i := range 4 {
		c.workers = append(c.workers, c.hire(i))
	}
}

// hire starts a new worker with a load. Workers with an even place prefer the first
// proxy.
func (c *chaos) hire(place int) *worker {
	c.born++
	w := c.worker(fmt.Sprintf("w%d", c.born))
	var dsns []string
	for i := range c.proxies {
		dsns = append(dsns, c.dsn(c.proxies[(place+i)%len(c.proxies)], w.name, c.params...))
	}
	if c.pinned {
		dsns = dsns[:1]
	}
	c.r.note("%s begins", w.name)
	c.r.load(w, loadPlan{DSNs: dsns, Seed: c.rand.Uint64(), Think: 30 * time.Millisecond, Styles: allStyles()})
	return w
}

// run injects faults for a time, lets everything recover, and checks the result.
func (c *chaos) run(length time.Duration, faults []fault) {
	c.t.Helper()
	c.runUntil(length, faults, func() bool { return true })
}

// runUntilSuperseded is run until a superseded worker was refused a write, without which the result proves nothing.
func (c *chaos) runUntilSuperseded(length time.Duration, faults []fault) {
	c.t.Helper()
	refused := func() bool { return !fencing.Checking || c.r.refusals(fencing.StateSuperseded) > 0 }
	c.runUntil(length, faults, refused)
	if !refused() {
		c.t.Error("no worker was superseded, so the run proves nothing")
	}
}

// runUntil is run for at least a time, and until enough reports true, but no longer than twice Patience.
func (c *chaos) runUntil(length time.Duration, faults []fault, enough func() bool) {
	c.t.Helper()
	count := map[string]int{}
	began := time.Now()
	for since := time.Duration(0); since < length || since < 2*process.Patience && !enough(); since = time.Since(began) {
		// On a slow machine, faults that followed each other at once would leave nobody to work.
		before := c.r.successes()
		process.Holds(5*time.Second, func() bool { return c.r.successes() > before })
		c.wait(50*time.Millisecond, 400*time.Millisecond)
		f := faults[c.rand.IntN(len(faults))]
		c.r.note("fault: %s", f.name)
		count[f.name]++
		f.do(c)
		c.r.note("over: %s", f.name)
	}
	c.t.Logf("faults: %v", count)
	c.finish()
}

// finish lets everything recover, ends the loads, and checks the result.
func (c *chaos) finish() {
	c.t.Helper()
	before := c.r.successes()
	if !process.Holds(process.Patience, func() bool { return c.r.successes() >= before+5 }) {
		c.t.Errorf("no work was done for %s after the faults", process.Patience)
	}
	c.r.halt(c.workers)
	c.t.Log(c.r.summary())
	c.r.check(c.cluster)
	c.audit()
}

// wait lets the workers work for a random time.
func (c *chaos) wait(least, most time.Duration) {
	time.Sleep(least + time.Duration(c.rand.Int64N(int64(most-least))))
}

func (c *chaos) anyWorker() *worker { return c.workers[c.rand.IntN(len(c.workers))] }

// leader returns the worker of the latest grant, nil if it is gone.
func (c *chaos) leader() *worker {
	name := ask[string](c.cluster, "SELECT coalesce((SELECT worker FROM fencepost.grants ORDER BY epoch DESC LIMIT 1), '')")
	for _, w := range c.workers {
		if w.name == name {
			return w
		}
	}
	return nil
}

// depose takes the leader's lease away, as an operator may do by mistake, while it
// works or while it is frozen, and waits until a worker has been granted a new epoch.
func (c *chaos) depose(frozen bool) {
	w := c.leader()
	if w == nil {
		return
	}
	if frozen {
		c.r.note("freeze %s", w.name)
		w.Freeze(c.t)
		defer w.Thaw(c.t)
	}
	// It may reacquire the lease before anybody else, under its epoch.
	for epoch, tries := c.epoch(), 0; tries < 5; tries++ {
		c.takeLease()
		if process.Holds(1500*time.Millisecond, func() bool { return c.epoch() > epoch }) {
			return
		}
	}
	c.r.note("nobody else was granted an epoch")
}
