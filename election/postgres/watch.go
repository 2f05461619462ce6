package postgres

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
)

// Watch implements elector.Provider.
func (p *Provider) Watch(ctx context.Context, resource string, seen elector.Observation) (elector.Observation, error) {
	p.begin()
	defer p.end()
	if err := p.awaitUp(ctx); err != nil {
		return elector.Observation{}, err
	}
	w := p.subscribe(resource)
	defer p.unsubscribe(resource, w)
	for {
		select {
		case next := <-w:
			if next.err != nil || next.obs != seen {
				return next.obs, next.err
			}
		case <-ctx.Done():
			return elector.Observation{}, ctx.Err()
		case <-p.renewer.over:
			return elector.Observation{}, errClosed
		}
	}
}

// Look reads a lease once. Unlike Watch it does not make the provider listen for changes.
func (p *Provider) Look(ctx context.Context, resource string) (elector.Observation, error) {
	all, err := p.read(ctx, []string{resource})
	return all[resource].obs, err
}

// ConfirmedUntil returns until when a lease is confirmed that was last read as held, as a
// reading of CLOCK_BOOTTIME; 0 if it was not.
func (p *Provider) ConfirmedUntil(resource string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.seen[resource].until
}

// awaitUp waits while the database is known to be unreachable.
func (p *Provider) awaitUp(ctx context.Context) error {
	p.mu.Lock()
	down := p.mu.down
	p.mu.Unlock()
	if down == nil {
		return nil
	}
	timer := time.NewTimer(recheckDown)
	defer timer.Stop()
	select {
	case <-down:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// setDown records whether notifications can be received. It reports whether that has
// changed.
func (p *Provider) setDown(down bool) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case down && p.mu.down == nil:
		p.mu.down = make(chan struct{})
	case !down && p.mu.down != nil:
		close(p.mu.down)
		p.mu.down = nil
	default:
		return false
	}
	return true
}

// begin and end count the watches. While there are any, the provider listens for changes.
func (p *Provider) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.watching++
	poke(p.came)
}

func (p *Provider) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.watching--
	p.mu.looked = p.now()
}

// watched reports whether someone watches a lease, or has until a moment ago.
func (p *Provider) watched() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.watching > 0 || p.now()-p.mu.looked < closeIdleAfter
}

// closeIdleAfter is how long there must be no watch before the provider stops
// listening, so that an unused database can be dropped. It is not zero, because a watch
// ends and starts again with everything that it observes.
const closeIdleAfter = time.Second

// listen receives notifications while someone watches, until Close.
func (p *Provider) listen(ctx context.Context) {
	defer p.wg.Done()
	for {
		select {
		case <-p.came:
		case <-ctx.Done():
			return
		}
		if !p.watched() {
			continue // sent by a watch that has already ended
		}
		listening, stop := context.WithCancel(ctx)
		p.wg.Add(1)
		go p.stopAtRest(listening, stop)
		p.listenOn(listening)
		stop()
	}
}

// stopAtRest calls stop when no one watches any more.
func (p *Provider) stopAtRest(ctx context.Context, stop context.CancelFunc) {
	defer p.wg.Done()
	defer stop()
	tick := time.NewTicker(closeIdleAfter / 2)
	defer tick.Stop()
	for p.watched() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// listenOn keeps a listening connection open until ctx ends.
func (p *Provider) listenOn(ctx context.Context) {
	defer p.setDown(false)
	pause := minListenPause
	for {
		listened, err := p.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if listened {
			pause = minListenPause
		}
		if p.setDown(true) {
			p.log.Warn("cannot listen for lease changes: retrying", zap.Error(err))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, maxListenPause)
	}
}

// listenOnce returns when the connection fails; listened reports whether it had been
// listening.
func (p *Provider) listenOnce(ctx context.Context) (listened bool, err error) {
	pooled, err := p.pool.Acquire(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack() // the pool may open another connection in its place
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "SELECT fencepost.lease_listen()"); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	if p.setDown(false) {
		p.log.Info("listening for lease changes again")
	}
	p.wake("") // earlier changes were not notified
	for {
		note, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true, fmt.Errorf("wait for a notification: %w", err)
		}
		p.wake(note.Payload)
		p.mu.Lock()
		notify := p.mu.notify
		p.mu.Unlock()
		if notify != nil {
			notify(note.Payload)
		}
	}
}

// FollowNotifications calls notify with each notification that is received until ctx ends, of changed leases and of
// whatever else is sent on their channel. The provider listens meanwhile. Only one call may be under way.
func (p *Provider) FollowNotifications(ctx context.Context, notify func(payload string)) {
	p.begin()
	defer p.end()
	p.setListener(notify)
	defer p.setListener(nil)
	<-ctx.Done()
}

func (p *Provider) setListener(notify func(payload string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.notify = notify
}
