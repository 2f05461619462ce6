package proxy

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/proxy/wire"
)

// startSession runs the startup of a session, which must be over at until: it connects to Postgres, relays the
// authentication, and joins the candidacy. It returns nil if there is no session, and has refused the client then,
// unless that has gone.
func (s *Server) startSession(client link, start *startup.Request, until time.Time) *session {
	ctx, cancel := context.WithCancel(s.ctx)
	guard := guardStartup(ctx, client, until)
	defer guard.stop()
	server, primary, err := s.dialPrimary(guard, socketBelow(client).Loop())
	if err != nil {
		s.refuseUnreachable(guard, client, start, err)
		cancel()
		return nil
	}
	s.failing.dial.Passed()
	s.failing.descriptors.Passed()
	x := newSession(s, client, server, start)
	x.ctx, x.cancel, x.backend.server = ctx, cancel, primary
	refused := func(e wire.ServerError) { s.refused.RefusedByPostgres(e, start.Client(client.RemoteAddr())) }
	x.handshake = handshake.New(client, server, refused, x.log)
	if s.register(x) {
		s.turnAway(client, start, refusals.ShuttingDown)
		x.close()
		return nil
	}
	unwake := guard.wake(server, client)
	err = x.begin(guard)
	if !unwake() && err == nil {
		err = handshake.ErrOver
	}
	if err != nil {
		x.refuse(x.refusalOf(err, guard))
		x.close()
		return nil
	}
	s.failing.answer.Passed()
	s.countGreeted(x)
	x.logConnection("client connected")
	return x
}

// refuseUnreachable refuses a client because Postgres could not be reached.
func (s *Server) refuseUnreachable(guard context.Context, client link, start *startup.Request, err error) {
	if errors.Is(context.Cause(guard), errClientGone) {
		return
	}
	failing := s.failing.dial
	if faults.NoDescriptor(err) {
		failing = s.failing.descriptors
	}
	failing.Failed(zap.Error(err))
	s.turnAway(client, start, refusals.Unreachable(err))
}

// refuse ends a session during its startup, and sends the client the reason unless err is handshake.ErrOver.
func (x *session) refuse(err error) {
	if errors.Is(err, handshake.ErrOver) {
		return
	}
	_ = x.client.SetWriteDeadline(time.Now().Add(lingerTime))
	_ = x.handshake.Flush() // what was sent before the reason, which is sent if this fails or not
	x.member.startup.joinedTo.Load().noteIfSuperseded()
	x.end(err)
	linger(x.client)
	x.srv.refused.Refused(err, x.start.Client(x.client.RemoteAddr()))
	switch {
	case errors.Is(err, refusals.ServerLate):
		x.srv.failing.answer.Failed()
		return
	case errors.Is(err, refusals.FenceLate):
		x.srv.failing.fence.Failed(zap.String("database", x.start.Database), zap.String("resource", x.start.Own.Resource))
		return
	}
	x.log().Debug("session refused", zap.Error(err))
}

// begin runs the startup, to the point where the client may send its first statement.
func (x *session) begin(guard *startupGuard) error {
	policy, err := x.applyPolicy()
	if err != nil {
		return err
	}
	req, params := x.joinRequest(), x.start.Params
	if x.start.Own.Resource != "" {
		x.identify(&req, policy.Identity)
		if policy.NameWorker { // the last parameter of a name counts
			name := startup.NameWorker(x.start.ApplicationName(), req.Resource, req.Worker)
			params = append(params[:len(params):len(params)], "application_name", name)
		}
	}
	if err := x.handshake.SendStartup(x.start.Version, params); err != nil {
		return err
	}
	if err := x.handshake.Authenticate(); err != nil {
		return err
	}
	if md, err := x.chooseMode(policy); err == nil && md != passing { // after an error, join says what is wrong
		if err := x.handshake.AskForBackend(); err != nil {
			return err
		}
	}
	if x.backend.Backend, err = x.handshake.RelayUntilReady(x.backend.server); err != nil {
		return err
	}
	if b := &x.backend; b.Secret != nil {
		b.keyPID, b.keySecret = x.srv.keys.add(x, b.server.Host, b.PID, b.Secret)
	}
	announced, err := x.join(guard, req, policy)
	if err != nil {
		return err
	}
	x.startupOnlyUntil = time.Now()
	if x.handshake.ClientHasSent() {
		x.startupOnlyUntil, announced = x.start.Began, 0 // the client sent these bytes before it could know the epoch
	}
	return x.greet(announced)
}

// greet sends the client its role and epoch, its cancel key and ReadyForQuery. The session serves
// from just before that: if the proxy shuts down later, the session drains, and if it did
// so before, the client is refused instead.
func (x *session) greet(announced fencing.Epoch) error {
	x.mu.Lock()
	if !x.life.advance(phaseServing) {
		x.mu.Unlock()
		return refusals.ShuttingDown
	}
	out := x.m.AppendGreeting(nil)
	x.member.addUnreadEpoch(x.member.candidacy(), announced)
	x.since = time.Now()
	x.mu.Unlock()
	if b := &x.backend; b.keyPID != 0 {
		out = wire.AppendBackendKeyData(out, b.keyPID, b.keySecret)
	}
	if err := x.handshake.Send(wire.AppendReadyForQuery(out, 'I')); err != nil {
		return err
	}
	x.active.busy.Store(false)
	return nil
}
