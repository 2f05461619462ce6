package kv

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key      = "db/billing"
	patience = 30 * time.Second
)

func open(t *testing.T, m *memory, proxy string) *Client {
	t.Helper()
	c, err := New(Config{Store: m, Source: "memory", Proxy: proxy, Logger: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func bid(worker string) elector.AcquireRequest {
	return elector.AcquireRequest{Resource: "billing", Worker: worker, Incarnation: worker + "-1", TTL: time.Minute}
}

func mustAcquire(t *testing.T, p *Provider, worker string) *elector.Lease {
	t.Helper()
	lease, err := p.Acquire(within(t, patience), bid(worker))
	if err != nil {
		t.Fatalf("acquire for %s: %v", worker, err)
	}
	return lease
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	stopwatch.Eventually(t, patience, what, holds)
}

func (m *memory) living() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.lives)
}

func TestALeaseSaysWhatWasGranted(t *testing.T) {
	t.Parallel()
	m := newMemory()
	c := open(t, m, "one")
	lease := mustAcquire(t, c.Database("db"), "a")
	if lease.Granted != 0 {
		t.Errorf("what was asked for is said to be %v", lease.Granted)
	}
	m.most = 10 * time.Second
	if err := c.Database("db").Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Fatal(err)
	}
	if lease := mustAcquire(t, c.Database("db"), "b"); lease.Granted != m.most {
		t.Errorf("granted %v, want %v", lease.Granted, m.most)
	}
	var denied *elector.DeniedError
	err := c.Check(within(t, patience), []time.Duration{m.most, time.Minute})
	if !errors.As(err, &denied) || denied.Kind != faults.LeaseTTL || !strings.Contains(denied.Remedy, "10s or less") {
		t.Errorf("the test of a TTL that is too long ended with %v", err)
	}
	if err := c.Check(within(t, patience), []time.Duration{m.most}); err != nil {
		t.Errorf("the test of a TTL that is not too long ended with %v", err)
	}
	eventually(t, "only the life of the lease goes on", func() bool { return m.living() == 1 })
}

// A service may block a lease for a while after its last holder was lost.
func TestALeaseThatIsBlockedCountsAsHeld(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.blocked = true
	c := open(t, m, "one")
	if lease, err := c.Database("db").Acquire(within(t, patience), bid("a")); !errors.Is(err, elector.ErrHeld) {
		t.Errorf("acquire ended with %+v, %v", lease, err)
	}
	eventually(t, "no life goes on", func() bool { return m.living() == 0 })
	if c.pending(bid("a").Incarnation) != nil {
		t.Error("the attempt is not over")
	}
	m.change(func() { m.blocked = false })
	mustAcquire(t, c.Database("db"), "a")
}

// A request of unknown outcome is written after its candidacy has given the lease back.
func TestALateSwapTakesNothing(t *testing.T) {
	t.Parallel()
	m := newMemory()
	p := open(t, m, "one").Database("db")
	m.before = func() {
		if err := p.Release(within(t, patience), &elector.Lease{AcquireRequest: bid("a")}, elector.ReasonLeft, 0); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	if lease, err := p.Acquire(within(t, patience), bid("a")); !errors.Is(err, elector.ErrNotSent) {
		t.Errorf("the late request ended with %+v, %v", lease, err)
	}
	if _, ok := m.entries[key]; ok {
		t.Error("it wrote the record")
	}
	if m.living() != 0 {
		t.Errorf("%d lives go on", m.living())
	}
}

func TestAnAwardIsOfTheLifeInWhichItWasMade(t *testing.T) {
	t.Parallel()
	m := newMemory()
	c := open(t, m, "one")
	p := c.Database("db")
	bumped := ""
	m.before = func() {
		var err error
		if bumped, err = c.BumpGeneration(within(t, patience)); err != nil {
			t.Error(err)
		}
	}
	if lease := mustAcquire(t, p, "a"); lease.InstanceID != bumped {
		t.Errorf("the award is of %s, but %s began before it was made", lease.InstanceID, bumped)
	}
}

func TestALostAnswerIsFoundUnderItsOwnLife(t *testing.T) {
	t.Parallel()
	m := newMemory()
	c := open(t, m, "one")
	p := c.Database("db")
	m.lost = true
	if _, err := p.Acquire(within(t, patience), bid("a")); err == nil {
		t.Fatal("the answer was not lost")
	}
	before := m.marker
	if _, err := c.BumpGeneration(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	if lease := mustAcquire(t, p, "a"); lease.Index != 1 || lease.InstanceID != before {
		t.Errorf("the award is %d of %s, it was 1 of %s", lease.Index, lease.InstanceID, before)
	}
	if m.begun != 1 {
		t.Errorf("%d lives were begun", m.begun)
	}
	if m.beats != 1 { // the lease is trusted from the second request on
		t.Errorf("its life was extended %d times", m.beats)
	}
}

func TestWhoWritesTheRecordFreesTheLease(t *testing.T) {
	t.Parallel()
	for name, meddle := range map[string]func(m *memory){
		"overwritten": func(m *memory) { m.version++; m.entries[key] = Entry{Record: []byte("mine"), Version: m.version} },
		"deleted":     func(m *memory) { delete(m.entries, key) },
	} {
		m := newMemory()
		p, q := open(t, m, "one").Database("db"), open(t, m, "two").Database("db")
		lease := mustAcquire(t, p, "a")
		m.change(func() { meddle(m) })
		if err := p.Renew(within(t, patience), lease); !errors.Is(err, elector.ErrLost) {
			t.Errorf("%s: the holder renews with %v", name, err)
		}
		next := mustAcquire(t, q, "b")
		if next.Index <= lease.Index {
			t.Errorf("%s: award %d came after %d", name, next.Index, lease.Index)
		}
		eventually(t, "the life of the old term is ended", func() bool { return m.living() == 1 })
	}
}

func TestAServiceThatIsSilentIsNotHealthy(t *testing.T) {
	t.Parallel()
	m := newMemory()
	m.silent = true
	c := open(t, m, "one")
	eventually(t, "the client knows", func() bool {
		err := c.Healthy()
		return errors.Is(err, context.DeadlineExceeded) && strings.Contains(err.Error(), "memory does not answer")
	})
	m.change(func() { m.silent = false })
	eventually(t, "the client knows that it answers", func() bool { return c.Healthy() == nil })
	mustAcquire(t, c.Database("db"), "a")
}

func TestAMarkerThatIsEmptyIsSaid(t *testing.T) {
	t.Parallel()
	m := &deaf{newMemory()}
	c, err := New(Config{Store: m, Source: "memory", Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	eventually(t, "the client says what to do", func() bool {
		err := c.Healthy()
		return err != nil && strings.Contains(err.Error(), "fencepost generation bump")
	})
	if _, err := c.BumpGeneration(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a bump mends it", func() bool { return c.Healthy() == nil })
}

// Postgres could not number what is no text, or is long.
func TestAMarkerOfAnotherFormIsSaid(t *testing.T) {
	t.Parallel()
	for _, marker := range []string{"\xff\xfe", "two words", strings.Repeat("x", 1<<20)} {
		m := newMemory()
		c := open(t, m, "one")
		if _, err := c.Database("db").Watch(within(t, patience), "billing", elector.Observation{}); err != nil { // the marker is there
			t.Fatal(err)
		}
		m.change(func() { m.marker = marker })
		said := func(err error) bool {
			return err != nil && strings.Contains(err.Error(), "fencepost generation bump") && len(err.Error()) < 300
		}
		eventually(t, "the client says what to do", func() bool { return said(c.Healthy()) })
		if _, err := c.Database("db").Acquire(within(t, patience), bid("a")); !errors.Is(err, elector.ErrNotSent) || !said(err) {
			t.Errorf("acquire ended with %v", err)
		}
		if _, err := c.BumpGeneration(within(t, patience)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a bump mends it", func() bool { return c.Healthy() == nil })
	}
}

// deaf has a marker that someone has overwritten with nothing.
type deaf struct{ *memory }

func (d *deaf) Mark(ctx context.Context, marker string, replace bool) error {
	if !replace {
		return nil
	}
	return d.memory.Mark(ctx, marker, replace)
}

// full denies what writes a record, as a service does that has no space left.
type full struct {
	*memory
	denies atomic.Bool
}

func (f *full) Swap(ctx context.Context, key string, old Entry, record []byte, life string) (int64, error) {
	if f.denies.Load() {
		return 0, &elector.DeniedError{Kind: faults.LeaseDenied, Err: errors.New("no space")}
	}
	return f.memory.Swap(ctx, key, old, record, life)
}

func TestAReleaseThatCannotBeRecordedFreesTheLease(t *testing.T) {
	t.Parallel()
	m := &full{memory: newMemory()}
	c, err := New(Config{Store: m, Source: "memory", Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := c.Database("db")
	lease := mustAcquire(t, p, "a")
	m.denies.Store(true)
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the release ended with %v", err)
	}
	if m.living() != 0 {
		t.Errorf("%d lives go on", m.living())
	}
}
