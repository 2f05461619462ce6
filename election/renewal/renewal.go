// Package renewal confirms and extends leases at a service where these are two requests: one
// that extends the lease, and one that reads whether its holder still has it.
//
// Both are sent at once, so that a renewal takes one round trip. But a lease that is extended
// again and again and never confirmed would serve nobody: its holder may not lead, and nobody
// else can take over. So it is extended only while a read that was sent within the last TTL has
// confirmed it. After that it is read first.
package renewal

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election"
)

// mostPause bounds the time until a request is repeated.
const mostPause = 500 * time.Millisecond

// Request is one attempt at a request. It returns at once when its context ends. election.ErrLost
// and *election.DeniedError are definite; any other error may be different next time.
type Request func(ctx context.Context) error

// Leases is what is known of a client's leases. It is safe for concurrent use.
type Leases struct {
	tries int
	now   func() time.Duration

	mu    sync.Mutex
	known map[string]confirmed // by id
}

type confirmed struct {
	ttl time.Duration
	at  time.Duration // when the last read that confirmed the lease was sent
}

// New returns an empty Leases. Each request of a renewal is sent up to tries times, until one is
// answered. now reads CLOCK_BOOTTIME.
func New(tries int, now func() time.Duration) *Leases {
	return &Leases{tries: tries, now: now, known: map[string]confirmed{}}
}

// Begin notes that a lease begins about now. It counts as confirmed.
func (l *Leases) Begin(id string, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[id] = confirmed{ttl, l.now()}
}

// Forget forgets a lease that is over. It need not be known.
func (l *Leases) Forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, id)
}

// Renew extends and confirms a lease, and returns the first definite error, or the last other
// one. confirm returns nil only if the lease is held. A lease that did not begin here is confirmed
// before it is extended.
func (l *Leases) Renew(ctx context.Context, id string, extend, confirm Request) error {
	pause := l.pause(ctx)
	read := func(ctx context.Context) error {
		sent := l.now()
		err := confirm(ctx)
		if err == nil {
			l.confirm(id, sent)
		}
		return err
	}
	if !l.current(id) {
		if err := l.repeat(ctx, pause, read); err != nil {
			return err
		}
		return l.repeat(ctx, pause, extend)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.repeat(ctx, pause, extend) })
	group.Go(func() error { return l.repeat(ctx, pause, read) })
	return group.Wait()
}

// current reports whether a read that was sent less than a TTL ago has confirmed the lease.
func (l *Leases) current(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.known[id]
	return ok && l.now()-known.at < known.ttl
}

func (l *Leases) confirm(id string, sent time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.known[id]; ok {
		l.known[id] = confirmed{known.ttl, max(known.at, sent)}
	}
}

// pause returns the time until a request is repeated, so that all tries have been sent before the
// context ends.
func (l *Leases) pause(ctx context.Context) time.Duration {
	end, ok := ctx.Deadline()
	if !ok {
		return mostPause
	}
	return max(time.Millisecond, min(mostPause, time.Until(end)/time.Duration(l.tries)))
}

// repeat sends a request, and sends it again after each pause without a definite answer. Earlier
// ones are not given up: they may have been slow, and not lost.
func (l *Leases) repeat(ctx context.Context, pause time.Duration, request Request) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	answers := make(chan error, l.tries)
	send := func() { wg.Go(func() { answers <- request(ctx) }) }
	send()
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	var cause error
	ended := ctx.Done()
	for sent, answered := 1, 0; answered < sent || sent < l.tries && ctx.Err() == nil; {
		select {
		case <-ticker.C:
			if sent < l.tries && ctx.Err() == nil {
				send()
				sent++
			}
		case err := <-answers:
			if err == nil || definite(err) {
				return err
			}
			answered++
			if cause == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
				cause = err // says more than that the time was over
			}
		case <-ended:
			ended = nil
		}
	}
	return cause
}

func definite(err error) bool {
	var denied *election.DeniedError
	return errors.Is(err, election.ErrLost) || errors.As(err, &denied)
}
