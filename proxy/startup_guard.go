package proxy

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// Why a startup was ended before it was done.
var (
	errStartupLate = errors.New("the startup took too long")
	errClientGone  = errors.New("the client has gone")
	errServerGone  = errors.New("the server has gone")
)

// errNoAnswer says that the client did not answer the server's authentication
// request.
var errNoAnswer = errors.New("no answer to the authentication request")

// goneWait is how long a startup goes on when the client has sent all it will.
// That need not be its end: it may have said everything at once, and read on. A
// server that answers at all has answered by then.
const goneWait = time.Second

// startupGuard bounds a session's startup, from the client's first byte to the
// first ReadyForQuery, without the time in which the client waits for the lease.
// Its context ends when the time is over, when the client has gone, or with its
// parent.
type startupGuard struct {
	context.Context
	stop  func()
	timer *time.Timer
	until time.Time
	left  time.Duration // while it is paused
}

// guardStartup begins to guard a startup that must be over at until.
func guardStartup(parent context.Context, client link, until time.Time) *startupGuard {
	timed, cancel := context.WithCancelCause(parent)
	ctx, stop := untilGone(timed, client, goneWait, errClientGone)
	g := &startupGuard{Context: ctx, until: until}
	g.timer = time.AfterFunc(time.Until(until), func() { cancel(errStartupLate) })
	g.stop = func() { g.timer.Stop(); stop(); cancel(nil) }
	return g
}

// pause stops the clock until resume.
func (g *startupGuard) pause() {
	g.timer.Stop()
	g.left = time.Until(g.until)
}

func (g *startupGuard) resume() {
	g.until = time.Now().Add(g.left)
	g.timer.Reset(g.left)
}

// wake ends what waits for one of the connections when the guard's context ends.
// unwake stops that, and reports whether it came in time. If not, all was ended when it
// returns.
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
		<-done // or it would end the write that tells the client why
		return false
	}
}

// untilGone returns a context that ends, by cause, when the peer has sent all it
// will and wait is over. stop ends it, and frees what it has.
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

// serverLate is what a client is told when the server did not answer in time.
var serverLate = &fencing.Refusal{
	SQLState: "08006", Message: "Postgres did not answer in time",
	Hint: "See whether Postgres answers, and startup_timeout in Fencepost's configuration.",
}

// refusalOf returns what the client of a startup that ended by err is to be
// told, errOver for nothing.
func (x *session) refusalOf(err error, guard context.Context) error {
	switch cause := context.Cause(guard); {
	case x.life.phase() > phaseServing: // the proxy shuts down
		return shuttingDown
	case x.isSuperseded():
		return x.supersededRefusal()
	case errors.Is(cause, errClientGone):
		return errOver
	case errors.Is(err, errNoAnswer):
		return protocolError("the answer to the authentication request did not arrive in time")
	case errors.Is(cause, errStartupLate):
		return serverLate
	default:
		return err
	}
}
