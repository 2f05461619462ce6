package proxy

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// The causes that end a startup early.
var (
	errStartupLate = errors.New("the startup took too long")
	errClientGone  = errors.New("the client has gone")
	errServerGone  = errors.New("the server has gone")
)

// goneWait is how long a startup, or the candidacy that a SET joins, is waited for after the client has
// ended its output. The client may have sent everything at once and may still read the replies, as it
// could with Postgres, which does not look at it meanwhile. A server under load needs seconds to start
// a backend.
const goneWait = 5 * time.Second

// startupGuard bounds a session's startup, from the client's first byte to the first
// ReadyForQuery, without the time in which the client waits for the lease. Its context ends
// when that time is over, when the client has gone, or with its parent.
type startupGuard struct {
	context.Context
	stop  func()
	timer *time.Timer
	until time.Time
	left  time.Duration // until the end; valid while the guard is paused
}

// guardStartup returns the guard of a startup that must be over at until.
func guardStartup(parent context.Context, client link, until time.Time) *startupGuard {
	timed, cancel := context.WithCancelCause(parent)
	ctx, stop := untilGone(timed, client, goneWait, errClientGone)
	g := &startupGuard{Context: ctx, until: until}
	g.timer = time.AfterFunc(time.Until(until), func() { cancel(errStartupLate) })
	g.stop = func() { g.timer.Stop(); stop(); cancel(nil) }
	return g
}

// pause stops the clock until resume is called.
func (g *startupGuard) pause() {
	g.timer.Stop()
	g.left = time.Until(g.until)
}

// resume restarts the clock with the time that was left.
func (g *startupGuard) resume() {
	g.until = time.Now().Add(g.left)
	g.timer.Reset(g.left)
}

// wake ends the blocked reads and writes of the connections when the guard's context ends.
// unwake cancels that, and reports whether it did so in time. If not, it returns after wake
// has set the deadlines.
func (g *startupGuard) wake(conns ...net.Conn) (unwake func() bool) {
	done := make(chan struct{})
	stop := context.AfterFunc(g, func() {
		defer close(done)
		for _, c := range conns {
			_ = c.SetDeadline(aLongTimeAgo)
		}
	})
	return func() bool {
		if stop() {
			return true
		}
		<-done // or wake would also end the write of the reason to the client
		return false
	}
}

// untilGone returns a context that ends, with the cause, when the peer has ended its output
// and wait has passed since. stop ends the context and its goroutine.
func untilGone(parent context.Context, peer link, wait time.Duration, cause error) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-socketBelow(peer).PeerEnded():
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(wait):
			cancel(cause)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// refusalOf returns the error that the client of a startup gets if the startup ended with
// err, or handshake.ErrOver if it gets none.
func (x *session) refusalOf(err error, guard context.Context) error {
	demotion, moved, supersededBy := demotionOf(x.backend.server.Tenure), x.active.moved.Load(), x.supersededBy()
	switch cause := context.Cause(guard); {
	case demotion != nil:
		return demotion
	case moved != nil:
		return moved
	case x.life.phase() > phaseServing: // the proxy shuts down
		return refusals.ShuttingDown
	case supersededBy != nil:
		return supersededBy.supersededRefusal()
	case errors.Is(cause, errClientGone):
		return handshake.ErrOver
	case errors.Is(err, handshake.ErrNoAnswer):
		return refusals.Protocol("the answer to the authentication request did not arrive in time")
	case errors.Is(cause, errStartupLate) && !errors.Is(err, refusals.FenceLate):
		return refusals.ServerLate
	default:
		return err
	}
}
