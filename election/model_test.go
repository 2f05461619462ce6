package election_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// errInjected is a failure after which the outcome is unknown.
var errInjected = errors.New("injected by the test")

// newElections starts a proxy on one database, with the model's clock and TTL. It is closed when the test ends.
func newElections(t *testing.T, m *model, b election.Backend) *election.Elections {
	t.Helper()
	e, err := election.New(election.Config{
		Open:     func(context.Context, string) (election.Backend, error) { return b, nil },
		Settings: func(string, string) election.Settings { return election.Settings{TTL: m.ttl} },
		Now:      m.now,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// model is a lease service and a fence in memory.
type model struct {
	ttl   time.Duration
	begin time.Time

	mu      sync.Mutex
	lease   elector.Observation
	expires time.Duration
	barred  map[string]bool // incarnations whose late requests acquire nothing
	changed chan struct{}   // closed and replaced with each change of the lease
	record  fencing.Record
}

func newModel(ttl time.Duration) *model {
	return &model{
		ttl: ttl, begin: time.Now(), barred: map[string]bool{}, changed: make(chan struct{}),
		lease: elector.Observation{State: elector.Freed, InstanceID: "instance"},
	}
}

// now is the reading of every clock in the simulation.
func (m *model) now() time.Duration { return time.Hour + time.Since(m.begin) }

// do runs f on the lease as it is now, and wakes the watches if it changes.
func (m *model) do(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.lease
	if m.lease.State == elector.Held && m.now() >= m.expires {
		m.lease.State = elector.Freed
	}
	f()
	if m.lease != before {
		close(m.changed)
		m.changed = make(chan struct{})
	}
}

// extendLocked makes the lease last another TTL, and its watches learn of the end.
func (m *model) extendLocked() {
	m.expires = m.now() + m.ttl
	time.AfterFunc(m.ttl, func() { m.do(func() {}) })
}

// holdsLocked reports whether the term is the current one.
func (m *model) holdsLocked(l *elector.Lease) bool {
	return m.lease.State == elector.Held && m.lease.Incarnation == l.Incarnation && (l.Index == 0 || m.lease.Index == l.Index)
}

// faults are what a proxy's requests suffer.
type faults struct {
	down    atomic.Bool  // nothing arrives
	percent atomic.Int64 // of the requests that fail otherwise
	latency time.Duration
}

// strike carries out a request as its fault allows: it may fail before it is sent, lose
// its answer, or arrive after its sender has given up.
func strike[T any](ctx context.Context, f *faults, do func() (T, error)) (answer T, err error) {
	if err := sleep(ctx, rand.N(f.latency)); err != nil {
		return answer, err
	}
	if f.down.Load() {
		return answer, errInjected
	}
	if rand.Int64N(100) >= f.percent.Load() {
		got, err := do()
		if err := errors.Join(err, sleep(ctx, rand.N(f.latency))); err != nil {
			return answer, err
		}
		return got, nil
	}
	switch rand.N(3) {
	case 0:
	case 1:
		_, _ = do()
	default:
		time.AfterFunc(rand.N(4*time.Second), func() { _, _ = do() })
		_ = sleep(ctx, rand.N(4*time.Second))
	}
	return answer, errInjected
}

// sleep waits for d, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// provider is the lease service as one proxy sees it.
type provider struct {
	*model
	faults *faults
}

func (provider) Source() string { return "model" }
func (provider) Close() error   { return nil }

func (p provider) Acquire(ctx context.Context, bid elector.AcquireRequest) (*elector.Lease, error) {
	return strike(ctx, p.faults, func() (lease *elector.Lease, err error) {
		p.do(func() {
			takes := bid.From != "" && p.lease.Incarnation == bid.From
			if p.barred[bid.Incarnation] || p.lease.State == elector.Held && p.lease.Incarnation != bid.Incarnation && !takes {
				err = elector.ErrHeld
				return
			}
			if p.lease.State != elector.Held || takes {
				p.lease.State, p.lease.Incarnation = elector.Held, bid.Incarnation
				p.lease.Index++
			}
			p.extendLocked()
			lease = &elector.Lease{AcquireRequest: bid, InstanceID: p.lease.InstanceID, Index: p.lease.Index}
		})
		return lease, err
	})
}

func (p provider) Renew(ctx context.Context, l *elector.Lease) error {
	_, err := strike(ctx, p.faults, func() (_ struct{}, err error) {
		p.do(func() {
			if !p.holdsLocked(l) {
				err = elector.ErrLost
				return
			}
			p.extendLocked()
		})
		return struct{}{}, err
	})
	return err
}

func (p provider) Adopt(ctx context.Context, l *elector.Lease) error { return p.Renew(ctx, l) }

func (p provider) Release(ctx context.Context, l *elector.Lease, why elector.Reason, _ time.Duration) error {
	_, err := strike(ctx, p.faults, func() (struct{}, error) {
		p.do(func() {
			if l.Index == 0 {
				p.barred[l.Incarnation] = true
			}
			mine := p.lease.Incarnation == l.Incarnation && (l.Index == 0 || p.lease.Index == l.Index)
			switch {
			case p.holdsLocked(l) && why == elector.ReasonUnresponsive:
				p.lease.State = elector.Unresponsive
			case p.holdsLocked(l), mine && why == elector.ReasonLeft:
				p.lease.State = elector.Freed
			}
		})
		return struct{}{}, nil
	})
	return err
}

func (p provider) Watch(ctx context.Context, _ string, seen elector.Observation) (elector.Observation, error) {
	for {
		p.mu.Lock()
		now, changed := p.lease, p.changed
		p.mu.Unlock()
		if p.faults.down.Load() || rand.Int64N(100) < p.faults.percent.Load() {
			return elector.Observation{}, errInjected
		}
		if now != seen {
			return now, sleep(ctx, rand.N(p.faults.latency))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return elector.Observation{}, ctx.Err()
		}
	}
}

// fence is the fence as one proxy sees it.
type fence struct {
	fencing.Fence
	*model
	faults *faults
}

func (f fence) BlockedBy() []string { return nil }

func (f fence) AwaitUnblocked(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f fence) Number(ctx context.Context, _, _ string) error {
	_, err := strike(ctx, f.faults, func() (struct{}, error) { return struct{}{}, nil })
	return err
}

func (f fence) Grant(ctx context.Context, a fencing.Award) (fencing.Epoch, error) {
	return strike(ctx, f.faults, func() (fencing.Epoch, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch {
		case f.record.Incarnation == a.Incarnation:
			f.record.Index = max(f.record.Index, a.Index)
		case a.Held > 0:
			return 0, &fencing.Refusal{SQLState: fencing.StateSuperseded, Message: "superseded"}
		case a.Index <= f.record.Index:
			return 0, &fencing.Refusal{SQLState: fencing.StateAwardNotNewer, Message: "not newer"}
		default:
			f.record = fencing.Record{
				Epoch: f.record.Epoch + 1, Worker: a.Worker, Incarnation: a.Incarnation, Source: a.Source, Index: a.Index,
			}
		}
		return f.record.Epoch, nil
	})
}

func (f fence) Record(ctx context.Context) (fencing.Record, error) {
	return strike(ctx, f.faults, func() (fencing.Record, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.record, nil
	})
}

func (f fence) Verify(_ context.Context, t fencing.Term) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.Epoch != 0 && f.record.Epoch > t.Epoch {
		return &fencing.Refusal{SQLState: fencing.StateSuperseded, Message: "superseded"}
	}
	return nil
}

func (f fence) Database() string                                               { return "" }
func (f fence) CheckRole(context.Context, string, uint32) error                { return nil }
func (f fence) SupersededBefore(context.Context, string, string) (bool, error) { return false, nil }
