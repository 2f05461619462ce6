package proxy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// maxWaiting is how many connections of one worker wait to lead a resource at one time. It is above the size of usual
// pools, all of whose connections may wait. Workers without an id are distinguished by their addresses only, which many may
// have in common behind a load balancer.
const maxWaiting, maxNameless = 64, 256

// waiting has the connections that wait to lead. A driver may leave one open that it has given up, and open
// another: pgjdbc does at its loginTimeout. The newest ones are those that someone still wants.
type waiting struct {
	mu  sync.Mutex
	all map[waitKey][]*waiter // oldest first
}

// waitKey is what the connections that wait are counted by. Those of workers without an id count together for each
// client address and user.
type waitKey struct {
	crewKey
	resource string
}

type waiter struct{ end context.CancelCauseFunc }

// errNewerWait ends the wait of the oldest connection when there are too many.
var errNewerWait = errors.New("newer connections of the worker wait")

// enter adds a connection that waits until leave is called. Its context ends with errNewerWait if too many newer ones
// wait.
func (w *waiting) enter(parent context.Context, c fencing.JoinRequest) (ctx context.Context, leave func()) {
	key := waitKey{crewKey{c.Database, c.User, c.Worker, c.Client}, c.Resource}
	if c.Nameless {
		key.worker = ""
	}
	most := maxWaiting
	if c.Nameless {
		most = maxNameless
	}
	ctx, end := context.WithCancelCause(parent)
	one := &waiter{end}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[waitKey][]*waiter{}
	}
	all := append(w.all[key], one)
	if len(all) > most {
		all[0].end(errNewerWait)
		all = slices.Delete(all, 0, 1)
	}
	w.all[key] = all
	return ctx, func() { end(nil); w.leave(key, one) }
}

func (w *waiting) leave(key waitKey, one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.all[key], func(o *waiter) bool { return o == one })
	if w.all[key] = all; len(all) == 0 {
		delete(w.all, key)
	}
}

// awaitLease waits for the candidacy's first attempt or, if the client requested that, until
// the worker leads. It also returns when the client or the server has gone, because a worker
// without a server connection must not lead.
func (x *session) awaitLease(guard *startupGuard, campaign fencing.CampaignMode) error {
	if campaign != fencing.CampaignWait {
		guard.pause()
		defer guard.resume()
		_ = x.member.candidacy().AwaitFirst(guard, x.srv.cfg.StartupWait) // the status says how it went
		return nil
	}
	if x.member.candidacy().Status().CanWrite() { // mostly of a worker that has other connections, or had some just now
		return nil
	}
	if err := x.handshake.SuspendIdleTimeout(); err != nil {
		return err
	}
	defer while(&x.active.waitingToLead)()
	if err := x.awaitLeader(guard); err != nil {
		return err
	}
	return x.handshake.RestoreIdleTimeout()
}

// awaitLeader waits until the worker leads. It also returns when the client or the server has gone.
func (x *session) awaitLeader(guard *startupGuard) error {
	guard.pause()
	defer guard.resume()
	ctx, stop := untilGone(guard, x.client, 0, errClientGone)
	defer stop()
	ctx, stopServer := untilGone(ctx, x.server, 0, errServerGone)
	defer stopServer()
	ctx, leave := x.srv.waiting.enter(ctx, x.member.request)
	defer leave()
	led := make(chan error, 1)
	go func() { led <- x.member.candidacy().AwaitLeader(ctx) }()
	err := x.notifyWaiting(led)
	switch {
	case errors.Is(err, handshake.ErrOver):
		x.log().Warn("a client that waits to lead does not read, and is disconnected",
			zap.String("resource", x.member.request.Resource), zap.String("worker", x.member.request.Worker))
		stop()
		<-led
		return err
	case errors.Is(context.Cause(ctx), errClientGone):
		return handshake.ErrOver
	case errors.Is(context.Cause(ctx), errServerGone):
		return nil // the next use of the server connection fails with the reason
	case err != nil && errors.Is(context.Cause(ctx), errNewerWait):
		return refusals.TooManyWait
	case err != nil:
		return refusals.Startup(err)
	}
	return nil
}

// notifyWaiting returns what arrives on led. Until then, it sends the client a NOTICE now and then,
// which says which worker it waits for and why. (Clients accept a NOTICE at any time of the startup.) It returns
// handshake.ErrOver if the client does not read.
func (x *session) notifyWaiting(led <-chan error) error {
	tick := time.NewTicker(x.srv.cfg.WaitNotice)
	defer tick.Stop()
	for {
		select {
		case err := <-led:
			return err
		case <-tick.C:
		}
		if err := x.sendStartupNotice(fencing.WaitNotice(x.start.Own.Resource, x.member.candidacy().Status(), x.member.candidacy().Trouble())); err != nil {
			return err
		}
	}
}

// sendStartupNotice sends the client a NOTICE, for at most StartupTimeout: a client that is frozen may have its kernel
// acknowledge everything for ever, and would be given the lead. It returns handshake.ErrOver then: the stream may end inside a message.
func (x *session) sendStartupNotice(notice *fencing.Refusal) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	if x.life.phase() != phaseStarting {
		return nil
	}
	defer while(&x.active.writing)()
	late := time.AfterFunc(x.srv.cfg.StartupTimeout, func() { _ = x.client.SetWriteDeadline(aLongTimeAgo) })
	_ = x.handshake.Send(refusals.AppendNotice(nil, notice)) // the guard notices that the client has gone
	if !late.Stop() {
		return handshake.ErrOver
	}
	return nil
}
