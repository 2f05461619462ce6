package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/proxyheader"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Pass passes a session on to another process: what this one knows of it, and descriptors of its client and its server,
// which stay the caller's. It returns nil if that process serves the session from now on. Otherwise, that process has
// sent nothing to either side, and never will. Pass returns within a bounded time.
type Pass func(state []byte, client, server int) error

// passed is what one process tells another of a session, besides its descriptors. The rest of what a session is (prepared
// statements, settings, temporary tables, what it listens to) is in its backend. A change that an older process must not
// overlook needs another version in package upgrade.
type passed struct {
	ID      string
	Startup []byte // of startup.Request.Packet
	Began   time.Time
	Since   time.Time
	Client  netip.AddrPort // the address of the client, as a PROXY header may have named it; invalid on a Unix socket
	Renamed []byte         // the last application_name that the client has set since its startup
	Traffic Traffic

	Host      string // address of the server
	Backend   handshake.Backend
	KeyPID    uint32
	KeySecret []byte
	ReadOnly  bool // the default_transaction_read_only that was reported last
}

// PassOn is Shutdown, except that the sessions that are not fenced are passed on, each when it is at rest. Those that
// pass does not take end.
func (s *Server) PassOn(ctx context.Context, pass Pass) error {
	s.passing.ctx, s.passing.pass = ctx, pass
	return s.Shutdown(ctx)
}

// outcome is what became of a session that was to be passed on.
type outcome uint8

const (
	endsHere outcome = iota // it stays in this process, and ends
	notYet                  // a part of a message is under way, after which this is tried again
	passedOn                // this process has forgotten it
)

// passOn passes a draining session on to another process. The session is at rest, and this pump, which holds nothing
// that the client has sent, reads no more.
func (u *upPump) passOn() outcome {
	x := u.x
	client, ok := proxyheader.Below(x.client).(netloop.Detachable)
	server, okToo := x.server.(netloop.Detachable)
	if !x.isToPass() || !ok || !okToo {
		return endsHere
	}
	if !x.sending.TryLock() {
		return notYet
	}
	defer x.sending.Unlock()
	x.mu.Lock()
	portable, state := x.m.Is(protocol.Portable), x.passedLocked()
	x.mu.Unlock()
	if !portable || u.in.have > 0 || !server.Withdraw() {
		return notYet
	}
	if u.down.in.have > 0 { // a part of a message, after whose rest the down pump wakes this one
		u.down.goOn()
		return notYet
	}
	if err := x.give(state, client, server); err != nil {
		x.log().Debug("session not passed on", zap.Error(err))
		u.down.goOn()
		return endsHere
	}
	x.forget()
	return passedOn
}

// isToPass reports whether the session is to be passed on when that is possible.
func (x *session) isToPass() bool {
	return x.life.phase() == phaseDraining && x.srv.passing.pass != nil && x.start.Own.Resource == "" && x.unfenced == UnfencedAllow
}

// passedLocked describes the session to another process. The session's mu, and sending, are held.
func (x *session) passedLocked() passed {
	b := &x.backend
	p := passed{
		ID: x.id, Startup: x.start.Packet(), Began: x.start.Began, Since: x.since, Renamed: []byte(x.renamed), Traffic: x.traffic(),
		Host: b.server.Address, Backend: b.Backend, KeyPID: b.keyPID, KeySecret: b.keySecret, ReadOnly: x.m.ReportedReadOnly(),
	}
	p.Traffic.add(x.before)
	if tcp, ok := x.client.RemoteAddr().(*net.TCPAddr); ok {
		p.Client = tcp.AddrPort()
	}
	return p
}

// give passes on a session whose connections no one reads. After an error, they are as before, or closed.
func (x *session) give(p passed, client, server netloop.Detachable) error {
	state, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("describe the session: %w", err)
	}
	to := &x.srv.passing
	to.Lock()
	defer to.Unlock()
	if to.ctx.Err() != nil { // while others were passed on
		return context.Cause(to.ctx)
	}
	var fds [2]int
	for i, conn := range []netloop.Detachable{client, server} {
		if fds[i], err = conn.Detach(); err != nil {
			break
		}
		defer unix.Close(fds[i])
		defer func() {
			if err != nil && conn.Attach() != nil {
				x.abort()
			}
		}()
	}
	if err == nil {
		err = to.pass(state, fds[0], fds[1])
	}
	return err
}

// forget ends the session in this process, without a word to either side.
func (x *session) forget() {
	x.stopReading(nil)
	close(x.downGone)
	x.close()
	x.srv.slots.Give()
	x.srv.end(socketBelow(x.client))
}

// errNotUnfenced refuses to take over a session that would not be one that nothing fences by the configuration of this
// process.
var errNotUnfenced = errors.New("by the configuration of the new process, the session would not be an unfenced one that may write, or not in the clear")

// Arrival is a session that another process is about to pass on to this one. It has to be begun or dropped.
type Arrival struct{ x *session }

// TakeOver examines whether this process can serve a session that another one passes on. It owns the connections from
// then on, and closes them if the session is refused. Nothing is read from them, or sent, before Begin.
func (s *Server) TakeOver(state []byte, client, server net.Conn) (_ *Arrival, err error) {
	kept := []net.Conn{client, server}
	taken := false
	defer func() {
		if err == nil {
			return
		}
		for _, conn := range kept {
			_ = conn.Close()
		}
		if taken {
			s.slots.Give()
		}
	}()
	var p passed
	if err := json.Unmarshal(state, &p); err != nil {
		return nil, fmt.Errorf("read what is passed on with a session: %w", err)
	}
	start, err := startup.Parse(p.Startup)
	if err != nil {
		return nil, err
	}
	start.Began = p.Began
	ctx, stop := context.WithTimeout(s.ctx, time.Second) // Primary does not wait once this process is ready
	defer stop()
	primary, err := s.cfg.Upstream.Primary(ctx)
	switch {
	case err != nil:
		return nil, err
	case primary.Address != p.Host || primary.TLS != nil:
		return nil, fmt.Errorf("the new process connects to %s, and not to %s in the clear", primary.Address, p.Host)
	case client.RemoteAddr() == nil || server.RemoteAddr() == nil:
		return nil, errors.New("the client or the server has gone")
	}
	if taken = s.slots.Take(); !taken {
		return nil, refusals.TooManyClients
	}
	loop := s.loops.Pick()
	for i := range kept {
		conn, err := loop.Adopt(kept[i])
		if err != nil {
			return nil, err
		}
		kept[i] = conn
	}
	x := newSession(s, kept[0].(link), kept[1].(link), start)
	if named := net.TCPAddrFromAddrPort(p.Client); p.Client.IsValid() && named.String() != x.client.RemoteAddr().String() {
		x.client = proxyheader.Restore(x.client, named)
	}
	x.id, x.since, x.renamed, x.before = p.ID, p.Since, string(p.Renamed), p.Traffic
	x.backend = backend{Backend: p.Backend, server: primary, keyPID: p.KeyPID, keySecret: p.KeySecret}
	if !x.staysUnfenced() {
		return nil, errNotUnfenced
	}
	if p.KeyPID != 0 && !s.keys.restore(x) {
		return nil, errors.New("a client of the new process has the same cancel key")
	}
	x.setCore(protocol.New(protocol.Config{
		Mode: protocol.ModePassing, Version: p.Backend.Version, Cache: s.analyst.cache, Parameters: readOnlyParameter(p.ReadOnly),
	}))
	x.active.busy.Store(false)
	x.life.advance(phaseServing)
	return &Arrival{x}, nil
}

// readOnlyParameter is the body of a ParameterStatus.
func readOnlyParameter(on bool) [][]byte {
	value := "off"
	if on {
		value = "on"
	}
	return [][]byte{wire.AppendParameterStatus(nil, "default_transaction_read_only", value)[wire.HeaderLen:]}
}

// staysUnfenced reports whether this process would let the session's client connect in the clear, without a resource,
// and write.
func (x *session) staysUnfenced() bool {
	s := x.srv
	if s.cfg.Console.Is(x.start.Database) || x.start.User == s.cfg.ControlUser || startup.NewReader(x.client, s.cfg.TLS).Admit(x.start) != nil {
		return false
	}
	if x.renamed != "" {
		request := x.joinRequest()
		request.ApplicationName = x.renamed
		if s.cfg.Policy(request).Route.Name != "" {
			return false
		}
	}
	policy, err := x.applyPolicy()
	return err == nil && x.start.Own.Resource == "" && policy.Unfenced == UnfencedAllow
}

// Begin serves the session, which the other process has forgotten.
func (a *Arrival) Begin() {
	x := a.x
	s := x.srv
	s.mu.Lock()
	draining := s.mu.draining
	if !draining {
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if draining {
		refusals.Send(x.client, refusals.AdminShutdown)
		a.Drop()
		return
	}
	draining = s.register(x)
	s.countGreeted(x)
	x.logConnection("client taken over")
	if draining {
		x.drain()
	}
	go x.relay()
}

// Drop forgets the session, which the other process still has, or which has ended with it.
func (a *Arrival) Drop() {
	x := a.x
	x.srv.keys.remove(x.backend.keyPID)
	_ = x.client.Close()
	_ = x.server.Close()
	x.srv.slots.Give()
}
