package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/proxy/wire"
)

// maxAuthMessage bounds a message of the client during the authentication
// (PG_MAX_AUTH_TOKEN_LENGTH). maxStartupReply bounds a message of the server before its
// first ReadyForQuery.
const (
	maxAuthMessage  = 65535
	maxStartupReply = 1 << 20
)

// errOver ends a startup without another message to the client, because the client already
// has an error, or because it has gone.
var errOver = errors.New("session over")

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
	if s.register(x) {
		s.turnAway(client, start, refusals.ShuttingDown)
		x.close()
		return nil
	}
	unwake := guard.wake(server, client)
	err = x.begin(guard)
	if !unwake() && err == nil {
		err = errOver
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
	if refusals.NoDescriptor(err) {
		failing = s.failing.descriptors
	}
	failing.Failed(zap.Error(err))
	s.turnAway(client, start, refusals.Unreachable(err))
}

// refuse ends a session during its startup, and sends the client the reason unless err is errOver.
func (x *session) refuse(err error) {
	if errors.Is(err, errOver) {
		return
	}
	_ = x.client.SetWriteDeadline(time.Now().Add(lingerTime))
	_ = x.handshake.toClient.Flush() // what was sent before the reason, which is sent if this fails or not
	x.member.joinedTo.Load().noteIfSuperseded()
	x.end(err)
	linger(x.client)
	x.srv.refused.Refused(err, x.start.Client(x.client.RemoteAddr()))
	if errors.Is(err, refusals.ServerLate) {
		x.srv.failing.answer.Failed()
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
		if params = params[:len(params):len(params)]; !x.isShadowed(policy) {
			params = append(params, placeholders...)
		}
		if policy.NameWorker { // the last parameter of a name counts
			params = append(params, "application_name", startup.NameWorker(x.start.ApplicationName(), req.Resource, req.Worker))
		}
	}
	if _, err := x.server.Write(wire.AppendStartup(nil, x.start.Version, params)); err != nil {
		return errOver
	}
	if err := x.authenticate(); err != nil {
		return err
	}
	if err := x.askForBackend(policy); err != nil {
		return err
	}
	if err := x.relayUntilReady(); err != nil {
		return err
	}
	status, announced, err := x.join(guard, req, policy)
	if err != nil {
		return err
	}
	x.startupOnlyUntil = time.Now()
	if x.handshake.fromClient.Buffered() > 0 || x.client.Unread() > 0 {
		x.startupOnlyUntil, announced = x.start.Began, 0 // the client sent these bytes before it could know the epoch
	}
	return x.greet(status, announced)
}

// placeholders are startup parameters that define the names that a client may SHOW. The
// server would otherwise refuse to describe such a SHOW, and drivers that prepare their
// statements have them described before they run them.
var placeholders = []string{"fencepost.role", "", "fencepost.epoch", "", "fencepost.resource", "", "fencepost.worker", ""}

// authenticate relays the authentication until the server accepts the client.
func (x *session) authenticate() error {
	stripped := false
	for {
		typ, msg, err := x.handshake.serverMessage()
		if err != nil {
			return err
		}
		ask := authNone
		if typ == 'R' && len(msg) >= wire.HeaderLen+4 {
			ask = binary.BigEndian.Uint32(msg[wire.HeaderLen:])
		}
		if ask == authSASL {
			msg, stripped = x.offer(msg)
		}
		switch {
		case typ == 'E':
			return x.refusedByServer(msg)
		case ask == authGSS, ask == authSSPI:
			return refusals.GSS
		}
		if _, err := x.handshake.toClient.Write(msg); err != nil {
			return errOver
		}
		switch ask {
		case authNone: // a notice, or NegotiateProtocolVersion
		case authOK:
			return nil
		case authSASLFinal: // the server continues without an answer
		default:
			if err := x.relayAnswer(ask == authSASL && stripped); err != nil {
				return err
			}
		}
	}
}

// offer returns the server's list of SASL mechanisms as the client gets it.
//
// Channel binding ties the authentication to the certificate that the client sees. It can be
// relayed only if that is the server's own certificate, which Fencepost may have been given.
// Otherwise offer removes it from the list, and stripped is true if the list had it.
func (x *session) offer(msg []byte) (offered []byte, stripped bool) {
	if pgtls.SameServer(x.client, x.server) {
		return msg, false
	}
	const head = wire.HeaderLen + 4
	offered, stripped = pgtls.WithoutBinding(append([]byte(nil), msg[:head]...), msg[head:])
	return wire.Sized(offered), stripped
}

// The authentication requests of a server that the relay distinguishes.
const (
	authOK        = 0
	authGSS       = 7
	authSSPI      = 9
	authSASL      = 10
	authSASLFinal = 12
	authNone      = ^uint32(0) // not an authentication request
)

// relayAnswer forwards one answer of the client to the server. stripped says that it answers
// an offer from which channel binding was removed.
func (x *session) relayAnswer(stripped bool) error {
	head, err := x.handshake.fromClient.Peek(wire.HeaderLen)
	if err != nil {
		return noAnswer(err)
	}
	f, _, err := wire.PeekFrame(head)
	if err != nil || f.Type != 'p' || f.Size > maxAuthMessage+wire.HeaderLen {
		return refusals.Protocol("expected password response, got message type %d", head[0])
	}
	msg := make([]byte, f.Size)
	if _, err := io.ReadFull(x.handshake.fromClient, msg); err != nil {
		return noAnswer(err)
	}
	if stripped && pgtls.MissesBinding(msg[wire.HeaderLen:]) {
		return refusals.Unbound
	}
	if _, err := x.server.Write(msg); err != nil {
		return errOver
	}
	return nil
}

// noAnswer returns the error of a startup in which reading the client's answer failed with
// err.
func noAnswer(err error) error {
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		return errOver
	}
	return errNoAnswer
}

// relayUntilReady relays what the server sends until its first ReadyForQuery, and records what it
// says about itself. It does not relay the cancel key and the ReadyForQuery.
func (x *session) relayUntilReady() error {
	for {
		typ, msg, err := x.handshake.serverMessage()
		if err != nil {
			return err
		}
		switch typ {
		case 'Z':
			return nil
		case 'K':
			x.setKey(msg[wire.HeaderLen:])
			continue
		case 'E':
			return x.refusedByServer(msg)
		case 'S':
			if err := x.backend.addParameter(msg[wire.HeaderLen:]); err != nil {
				return err
			}
		}
		if _, err := x.handshake.toClient.Write(msg); err != nil {
			return errOver
		}
	}
}

// refusedByServer relays the error with which the server refuses the connection, and counts and logs
// it. A server that refuses Fencepost's own parameters is not Postgres; the error returned
// says so then.
func (x *session) refusedByServer(msg []byte) error {
	e, _ := wire.DecodeError(msg[wire.HeaderLen:])
	if e.Code == "08P01" && x.start.Own.Resource != "" && strings.Contains(e.Message, placeholders[0]) {
		return fencing.PoolerRefusal
	}
	x.srv.refused.RefusedByPostgres(e, x.start.Client(x.client.RemoteAddr()))
	_, _ = x.handshake.toClient.Write(msg) // the connection ends either way
	_ = x.handshake.toClient.Flush()
	return errOver
}

// greet sends the client its role and epoch, its cancel key and ReadyForQuery. The session serves
// from just before that: if the proxy shuts down later, the session drains, and if it did
// so before, the client is refused instead.
func (x *session) greet(st *fencing.Status, announced fencing.Epoch) error {
	x.mu.Lock()
	if !x.life.advance(phaseServing) {
		x.mu.Unlock()
		return refusals.ShuttingDown
	}
	out := x.m.AppendGreeting(nil)
	x.announceOwn(announced)
	x.since = time.Now()
	x.mu.Unlock()
	if b := &x.backend; b.keyPID != 0 {
		out = wire.AppendBackendKeyData(out, b.keyPID, b.keySecret)
	}
	if _, err := x.handshake.toClient.Write(wire.AppendReadyForQuery(out, 'I')); err != nil {
		return errOver
	}
	if err := x.handshake.toClient.Flush(); err != nil {
		return errOver
	}
	x.active.busy.Store(false)
	return nil
}
