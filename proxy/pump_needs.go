package proxy

import (
	"context"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// awaitRoom waits until the server has answered enough for more to be sent.
// It reports false when the server answers no more.
func (x *session) awaitRoom() bool {
	x.mu.Lock()
	if x.downEnded {
		x.mu.Unlock()
		return false
	}
	if x.m.HasRoom() {
		x.mu.Unlock()
		return true
	}
	room := make(chan struct{})
	x.room = room
	x.mu.Unlock()
	end := while(&x.active.sending)
	<-room
	end()
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.downEnded
}

// retries reports, at the end of what the client says, whether some of it is to
// be sent again first, and waits until it can be.
func (x *session) retries() bool {
	x.mu.Lock()
	repeats := x.m.WillReplay()
	x.mu.Unlock()
	return repeats && x.awaitRoom()
}

// meet does what the machine needs before it can go on.
func (x *session) meet(ctx context.Context, n protocol.Need) {
	defer while(&x.active.serving)()
	switch n {
	case protocol.NeedRegister:
		r := x.register(ctx)
		x.mu.Lock()
		x.m.Registered(r)
		x.mu.Unlock()
		return
	case protocol.NeedCatalog:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.cand.Fence().RefreshCatalog(wait)
		cancel()
		x.mu.Lock()
		x.m.Refreshed()
		x.mu.Unlock()
		return
	case protocol.NeedAnalysis:
		x.analyze()
		return
	case protocol.NeedCampaign:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.cand.CampaignOnDemand(wait)
		cancel()
	case protocol.NeedConfirm:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		_ = x.cand.AwaitConfirmed(wait) // the standing says how it went
		cancel()
	}
	x.mu.Lock()
	x.m.Asked(n)
	x.mu.Unlock()
}

// analyze analyzes the text that the machine waits for, without the session's
// lock: a long text takes up to half a second, and may have to wait for others.
// Roles take turns, and within a role those who lead and those who do not, so
// that nobody waits for all the texts of somebody else.
func (x *session) analyze() {
	x.mu.Lock()
	sql, settings := x.m.WantedAnalysis()
	key := x.start.user
	if x.m.MayWrite() {
		key += "\x00leads" // no role's name has a NUL byte
	}
	x.mu.Unlock()
	leave := x.srv.parsing.enter(key)
	t := x.srv.analyze(sql, settings)
	leave()
	x.mu.Lock()
	x.m.Analyzed(t)
	x.mu.Unlock()
}

// register notes the backend in the registry, once the last note is gone.
func (x *session) register(ctx context.Context) *fencing.Refusal {
	x.mu.Lock()
	gone := x.registrationGone
	x.mu.Unlock()
	if gone != nil {
		<-gone
	}
	x.mu.Lock()
	stuck := x.registrationStuck
	entry := x.m.RegisterRequest()
	entry.PID = x.pid
	x.mu.Unlock()
	if stuck {
		return fencing.RegistrationStuckRefusal
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	note, err := x.cand.Fence().RegisterBackend(ctx, entry)
	if err != nil {
		x.log.Debug("registry refused", zap.Error(err))
		return fencing.FaultRefusal(err)
	}
	x.mu.Lock()
	x.registration = note
	x.mu.Unlock()
	x.observer.Registered(int64(entry.Announced))
	return nil
}
