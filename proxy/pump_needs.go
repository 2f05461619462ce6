package proxy

import (
	"context"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// awaitRoom waits until the server has answered enough for more to be sent.
// It reports false when the server answers no more.
func (x *session) awaitRoom() bool {
	x.mu.Lock()
	if x.downEnded {
		x.mu.Unlock()
		return false
	}
	if x.m.roomy() {
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

// repeats reports, at the end of what the client says, whether some of it is to
// be sent again first, and waits until it can be.
func (x *session) repeats() bool {
	x.mu.Lock()
	repeats := x.m.repeat.discard || x.m.repeat.due
	x.mu.Unlock()
	return repeats && x.awaitRoom()
}

// meet does what the machine needs before it can go on.
func (x *session) meet(ctx context.Context, n need) {
	defer while(&x.active.serving)()
	switch n {
	case needEnter:
		r := x.enter(ctx)
		x.mu.Lock()
		x.m.entered(r)
		x.mu.Unlock()
		return
	case needCatalogue:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.cand.Fence().RefreshCatalogue(wait)
		cancel()
		x.mu.Lock()
		x.m.refreshed()
		x.mu.Unlock()
		return
	case needAnalysis:
		x.analyze()
		return
	case needDemand:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.cand.Demand(wait)
		cancel()
	case needConfirm:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		_ = x.cand.AwaitConfirmed(wait) // the standing says how it went
		cancel()
	}
	x.mu.Lock()
	x.m.asked(n)
	x.mu.Unlock()
}

// analyze analyzes the text that the machine waits for, without the session's
// lock: a long text takes up to half a second, and may have to wait for others.
// Roles take turns, and within a role those who lead and those who do not, so
// that nobody waits for all the texts of somebody else.
func (x *session) analyze() {
	x.mu.Lock()
	sql, settings := x.m.wanted()
	key := x.start.user
	if x.m.mayWrite() {
		key += "\x00leads" // no role's name has a NUL byte
	}
	x.mu.Unlock()
	leave := x.srv.parsing.enter(key)
	t := x.srv.analyze(sql, settings)
	leave()
	x.mu.Lock()
	x.m.analyzed(t)
	x.mu.Unlock()
}

// enter notes the backend in the registry, once the last note is gone.
func (x *session) enter(ctx context.Context) *fencing.Refusal {
	x.mu.Lock()
	gone := x.noteGone
	x.mu.Unlock()
	if gone != nil {
		<-gone
	}
	x.mu.Lock()
	stuck := x.noteStuck
	entry := x.m.entry()
	entry.PID = x.pid
	x.mu.Unlock()
	if stuck {
		return noteStuckRefusal
	}
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	note, err := x.cand.Fence().Enter(ctx, entry)
	if err != nil {
		x.log.Debug("registry refused", zap.Error(err))
		return faultRefusal(err)
	}
	x.mu.Lock()
	x.note = note
	x.mu.Unlock()
	x.observer.Noted(int64(entry.Told))
	return nil
}
