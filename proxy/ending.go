package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/upstream"
)

// drain ends the session at its next safe point. A session in its startup is refused at
// once.
func (x *session) drain() {
	if x.endStartup() {
		return
	}
	x.mu.Lock()
	x.life.advance(phaseDraining)
	wake := x.pumps.reading
	x.mu.Unlock()
	if wake {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
}

// endStartup moves a session in its startup to Ending, so that its client is refused, and
// reports whether it was in its startup.
func (x *session) endStartup() bool {
	x.mu.Lock()
	starting := x.life.phase() == phaseStarting && x.life.advance(phaseEnding)
	x.mu.Unlock()
	if starting {
		x.cancel()
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
	return starting
}

// endWithTenure ends the sessions with a server when its tenure ends, or returns when s is closed.
func (s *Server) endWithTenure(tenure context.Context) {
	select {
	case <-tenure.Done():
	case <-s.ctx.Done():
		return
	}
	s.mu.Lock()
	delete(s.mu.tenures, tenure)
	sessions, _ := s.openLocked()
	s.mu.Unlock()
	var ended sync.WaitGroup
	for _, x := range sessions {
		if x.backend.server.Tenure == tenure {
			ended.Go(func() { x.endWithServer(demotionOf(tenure)) })
		}
	}
	ended.Wait()
}

// endWithServer ends the session because its server is of no use any more. A superseded session has none; its
// client gets the error at its next use.
func (x *session) endWithServer(why *fencing.Refusal) {
	if !x.endStartup() && !x.isSuperseded() {
		x.endAtOnce(why)
	}
}

// demotionOf returns the error for the clients of a server that has lost its tenure, nil if it
// has not.
func demotionOf(tenure context.Context) *fencing.Refusal {
	var demoted *upstream.DemotedError
	if !errors.As(context.Cause(tenure), &demoted) {
		return nil
	}
	return demoted.Refusal()
}

// abort closes both connections, and ends the session's context. The pumps then end by themselves.
func (x *session) abort() {
	_ = x.client.Close()
	_ = x.server.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.contextLocked() // which is the ended one from now on
	x.cancel()
}

// context returns the context of what the session waits for other than its connections. Few sessions wait for anything
// after their startup, so it is made when it is needed.
func (x *session) context() context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.contextLocked()
}

func (x *session) contextLocked() context.Context {
	if x.ctx == nil {
		x.ctx, x.cancel = context.WithCancel(x.srv.ctx)
	}
	return x.ctx
}

// dropContext ends the context of the startup, unless the session has been aborted.
func (x *session) dropContext() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx.Err() == nil {
		x.cancel()
		x.ctx, x.cancel = nil, nil
	}
}

// endAtOnce ends the session at once, as Postgres does in a fast shutdown. The client is sent
// the reason, unless a reply is being sent to it.
func (x *session) endAtOnce(why *fencing.Refusal) {
	if x.sending.TryLock() {
		x.mu.Lock()
		notify := x.m != nil && x.life.markNotified() && !x.m.Is(protocol.InsideReply)
		x.mu.Unlock()
		if notify {
			refusals.Send(x.client, why)
		}
		x.sending.Unlock()
	}
	x.abort()
}

// stopReading moves the session to Ending: nothing more is read from the client, and the down
// pump no longer waits for the up pump. If reason is not nil, hangUp sends it to the client
// after the server's last reply.
func (x *session) stopReading(reason *fencing.Refusal) {
	x.mu.Lock()
	x.life.advance(phaseEnding) // or the session is in Ending already
	if reason != nil {
		x.life.reason = reason
	}
	question := x.pumps.takeQuestion()
	x.mu.Unlock()
	if question != nil {
		question.answer(false)
	}
}

// end moves the session to Ending and sends the client the reason as a FATAL error, after the
// reply that is being sent. It sends nothing if the client has been sent a reason before, if a
// message of the server has been sent to it only in part, or if reason is not a *Refusal.
func (x *session) end(reason error) {
	x.stopReading(nil) // before sending is locked: the down pump holds it while it waits for the up pump
	x.sending.Lock()
	defer x.sending.Unlock()
	x.mu.Lock()
	first := x.life.markNotified() && !(x.m != nil && x.m.Is(protocol.InsideReply))
	x.mu.Unlock()
	if first {
		refusals.Send(x.client, reason)
	}
}

// endSuperseded ends the session because its candidacy is over, and audits what the client
// has tried.
func (x *session) endSuperseded(tried protocol.Attempt) {
	r := x.endedRefusal()
	s := x.supersededBy()
	x.mu.Lock()
	audit := tried.Sent && r != fencing.RetiredRefusal && x.life.markAudited()
	var rejection fencing.Rejection
	if audit {
		rejection = x.m.Rejection(r, tried)
		rejection.Time = time.Now()
		rejection.Resource, rejection.Incarnation, rejection.Held = s.resource, s.candidacy().Incarnation(), s.candidacy().Status().Epoch
		audit = !x.postponeAudit(&rejection)
	}
	x.mu.Unlock()
	s.joinedTo.Load().noteSuperseded()
	x.end(r)
	if audit {
		x.audit(rejection)
	}
}

// hangUp is how the down pump ends the session: it sends the client the reason that
// stopReading has recorded, if any, and the end of the stream, and wakes the up pump.
func (x *session) hangUp() {
	x.stopReading(nil)
	x.mu.Lock()
	reason, last := x.life.reason, x.life.postponed
	x.mu.Unlock()
	if reason != nil {
		x.end(reason)
	}
	if last == nil { // else it is audited before the end of the stream
		_ = x.client.CloseWrite()
	}
	_ = x.client.SetReadDeadline(aLongTimeAgo)
}

// relayFatal relays the server's FATAL error and ends the session. If the backend was ended
// because another worker was granted an epoch, the client gets that reason instead.
func (x *session) relayFatal(e *protocol.Event) {
	_ = x.server.Close()
	if fencing.Checking && x.member.candidacy() != nil && x.member.shadow == nil && e.Err.Code == "57P01" {
		if s := x.findSuperseded(x.context()); s != nil {
			x.member.state.Store(s)
			x.serverEnded()
			return
		}
	}
	x.mu.Lock()
	first := x.life.markNotified()
	x.mu.Unlock()
	if first {
		_ = x.toClient(e.Message)
	}
	x.hangUp()
}

// askAgainAfter is how long findSuperseded waits before it asks again.
const askAgainAfter = 50 * time.Millisecond

// findSuperseded returns the membership for whose resource another worker was granted an epoch, so that the backend was
// ended: one that the transaction or the session is fenced for. It returns nil if there is none. While the worker has an
// epoch and its lease is not confirmed, such a grant may not have returned yet: it ends the backend in order to get its
// lock. A worker without an epoch has nothing that another worker could take over.
func (x *session) findSuperseded(ctx context.Context) *membership {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	var all []*membership
	x.mu.Lock()
	for _, resource := range x.m.FencedResources() {
		all = append(all, x.member.membershipLocked(resource))
	}
	x.mu.Unlock()
	for _, s := range x.memberships() {
		if s.forSession.Load() {
			all = append(all, s)
		}
	}
	for {
		waits := false
		for _, s := range all {
			cand := s.candidacy()
			switch {
			case cand.Status().Epoch == 0:
			case cand.CheckSuperseded(ctx):
				return s
			case !cand.Status().CanWrite(): // else the lease is confirmed: most likely an operator ended the backend
				waits = true
			}
		}
		if !waits {
			return nil
		}
		select {
		case <-time.After(askAgainAfter):
		case <-ctx.Done():
			return nil
		}
	}
}

// serverEnded is called by the down pump when the server connection has ended. If the session
// is superseded and its client waits for no reply, the up pump sends the client the error at its next
// use. Every other session ends now.
func (x *session) serverEnded() {
	if !x.isSuperseded() {
		x.hangUp()
		return
	}
	x.mu.Lock()
	quiet := x.m.Is(protocol.Quiet)
	var tried protocol.Attempt
	if !quiet {
		tried = x.m.InFlight()
	}
	x.mu.Unlock()
	if quiet {
		return
	}
	x.endSuperseded(tried)
	x.hangUp()
}

// lingerTime and lingerBytes bound what linger reads.
const (
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

// linger ends the output to a client and discards what it still sends. If the proxy closed
// the connection while bytes of the client were unread, the kernel would reset it, and the
// client might never see why its session ended.
func linger(client link) {
	_ = client.CloseWrite()
	_ = client.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, client, lingerBytes) // the connection ends either way
}

// closedByPeer reports whether err is the ordinary end of a connection.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
