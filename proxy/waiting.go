package proxy

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/workers"
)

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
	if err := x.handshake.Flush(); err != nil {
		return err
	}
	guard.pause()
	defer guard.resume()
	ctx, stop := untilGone(guard, x.client, 0, errClientGone)
	defer stop()
	ctx, stopServer := untilGone(ctx, x.server, 0, errServerGone)
	defer stopServer()
	ctx, leave := x.srv.waiting.Enter(ctx, x.member.request)
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
	case err != nil && errors.Is(context.Cause(ctx), workers.ErrNewerWait):
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
// acknowledge everything for ever, and would be given the lead. It returns handshake.ErrOver then: the stream may end
// inside a message.
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
