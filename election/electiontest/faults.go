package electiontest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencepost/fencepost/election/boottime"
	"github.com/fencepost/fencepost/election/elector"
)

// call is a method of a Provider.
type call string

const (
	acquire call = "acquire"
	renew   call = "renew"
	release call = "release"
	watch   call = "watch"
)

// errInjected is the error of a call that failed, or whose answer was lost. It says
// nothing about the outcome.
var errInjected = errors.New("injected by the test")

// faultyProvider is a Provider whose calls fail as a test says. A fault strikes where
// every Provider can be made to fail, whatever protocol it speaks: at its methods.
type faultyProvider struct {
	elector.Provider

	mu    sync.Mutex
	next  map[call]*fault
	calls map[call]int  // so far
	gate  chan struct{} // not nil while all calls hang; closed when they continue
}

// fault is what happens to one call.
type fault struct {
	kind    faultKind
	met     chan meeting  // receives once, when the call is made
	arrives chan struct{} // closed when a late request or answer may arrive
}

// meeting is the number of a call that met its fault, counted from 1, and the time at
// which it was made, by CLOCK_BOOTTIME.
type meeting struct {
	number int
	at     time.Duration
}

type faultKind uint8

const (
	failsBefore faultKind = iota // nothing is sent
	losesAnswer                  // it is carried out, and its caller gets an error
	startsLate                   // it is carried out late
	answersLate                  // it is carried out, and its caller waits
)

func newFaultyProvider(p elector.Provider) *faultyProvider {
	return &faultyProvider{Provider: p, next: map[call]*fault{}, calls: map[call]int{}}
}

// fail makes the next call fail before anything is sent.
func (f *faultyProvider) fail(c call) *fault { return f.set(c, failsBefore) }

// lose carries out the next call, and loses its answer.
func (f *faultyProvider) lose(c call) *fault { return f.set(c, losesAnswer) }

// delay carries out the next call, and delays its answer until arrive.
func (f *faultyProvider) delay(c call) *fault { return f.set(c, answersLate) }

// hold delays the next call until arrive, and then carries it out.
func (f *faultyProvider) hold(c call) *fault { return f.set(c, startsLate) }

// arrive ends a hold or a delay.
func (x *fault) arrive() { close(x.arrives) }

// wait returns when the late request or answer may arrive, or with ctx's error.
func (x *fault) wait(ctx context.Context) error {
	select {
	case <-x.arrives:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *faultyProvider) set(c call, kind faultKind) *fault {
	x := &fault{kind: kind, met: make(chan meeting, 1), arrives: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next[c] = x
	return x
}

// hang makes all calls hang until their contexts end: those made from now on do nothing,
// and those under way do not return. mend ends that; what still waits continues.
func (f *faultyProvider) hang() (mend func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.gate = gate
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		close(gate)
		f.gate = nil
	}
}

// pass returns when calls do not hang, or with ctx's error.
func (f *faultyProvider) pass(ctx context.Context) error {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate == nil {
		return nil
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// made returns how many calls were made so far.
func (f *faultyProvider) made(c call) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[c]
}

// strike carries out a call as its fault allows.
func (f *faultyProvider) strike(ctx context.Context, c call, do func() error) error {
	f.mu.Lock()
	x := f.next[c]
	delete(f.next, c)
	f.calls[c]++
	if x != nil {
		x.met <- meeting{f.calls[c], boottime.Now()}
	}
	f.mu.Unlock()
	if err := f.pass(ctx); err != nil {
		return err
	}
	switch {
	case x == nil:
	case x.kind == failsBefore && c == acquire:
		return fmt.Errorf("%w: %w", elector.ErrNotSent, errInjected)
	case x.kind == failsBefore:
		return errInjected
	case x.kind == startsLate:
		if err := x.wait(ctx); err != nil {
			return err
		}
	}
	err := do()
	if hung := f.pass(ctx); hung != nil {
		return hung
	}
	switch {
	case x == nil, err != nil:
	case x.kind == losesAnswer:
		return errInjected
	case x.kind == answersLate:
		return x.wait(ctx)
	}
	return err
}

func (f *faultyProvider) Acquire(ctx context.Context, bid elector.AcquireRequest) (lease *elector.Lease, err error) {
	err = f.strike(ctx, acquire, func() (err error) { lease, err = f.Provider.Acquire(ctx, bid); return err })
	if err != nil {
		return nil, err
	}
	return lease, nil
}

func (f *faultyProvider) Renew(ctx context.Context, l *elector.Lease) error {
	return f.strike(ctx, renew, func() error { return f.Provider.Renew(ctx, l) })
}

// Adopt implements elector.Adopter. Its faults are those of Renew.
func (f *faultyProvider) Adopt(ctx context.Context, l *elector.Lease) error {
	adopter, ok := f.Provider.(elector.Adopter)
	if !ok {
		return errors.ErrUnsupported
	}
	return f.strike(ctx, renew, func() error { return adopter.Adopt(ctx, l) })
}

func (f *faultyProvider) Release(ctx context.Context, l *elector.Lease, why elector.Reason, silent time.Duration) error {
	return f.strike(ctx, release, func() error { return f.Provider.Release(ctx, l, why, silent) })
}

func (f *faultyProvider) Watch(ctx context.Context, resource string, seen elector.Observation) (obs elector.Observation, err error) {
	err = f.strike(ctx, watch, func() (err error) { obs, err = f.Provider.Watch(ctx, resource, seen); return err })
	if err != nil {
		return elector.Observation{}, err
	}
	return obs, nil
}

// happened waits until the call is made that meets the fault.
func (w *testEnv) happened(x *fault) meeting {
	w.Helper()
	select {
	case m := <-x.met:
		return m
	case <-time.After(patience):
		w.Fatal("the call that was to fail is not made")
		return meeting{}
	}
}
