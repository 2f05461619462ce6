package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/proxyheader"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/startup"
)

// errOtherwise refuses to take over a session that would be another one by the configuration of this process.
var errOtherwise = errors.New("by the configuration of the new process, the session would not be one that may write in this way, or not in the clear")

// Arrival is a session that another process is about to pass on to this one. It has to be begun or dropped.
type Arrival struct {
	x      *session
	config protocol.Config
	// begin and drop are those of Movable.Adopt, nil if the session does not bring its candidacy.
	begin, drop func()
}

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
	start.Began, start.Own = p.Began, p.Own
	within := time.Second // for which the other process waits at least, unless it says otherwise
	if p.Within > 0 {
		within = min(within, p.Within*3/4)
	}
	ctx, stop := context.WithTimeout(s.ctx, within)
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
	a := &Arrival{x: x, config: protocol.Config{Mode: protocol.ModePassing, Version: p.Backend.Version, Cache: s.analyst.cache, Carried: &p.Carried}}
	if !x.staysMovable(p.Request != nil) {
		return nil, errOtherwise
	}
	if p.Request != nil {
		if err := a.joinAgain(ctx, &p); err != nil {
			return nil, err
		}
	}
	if p.KeyPID != 0 && !s.keys.restore(x) {
		a.leave()
		return nil, errors.New("a client of the new process has the same cancel key")
	}
	x.active.busy.Store(false)
	x.life.advance(phaseServing)
	return a, nil
}

// joinAgain makes the session a member of its worker's candidacy in this process. The last session of a candidacy has
// that examined.
func (a *Arrival) joinAgain(ctx context.Context, p *passed) (err error) {
	x, s := a.x, &a.x.member.startup
	s.knownToCore = true
	x.registrations = registrations{{membership: s, entry: p.Entry, epoch: p.Epoch}}
	req := *p.Request
	req.Database, req.User = x.start.Database, x.start.User // which need not be UTF-8
	x.becomeMember(&req)
	req.Arrives = true
	if err = s.join(ctx, req); err == nil {
		x.member.state.Store(joined)
		if p.Lead != nil {
			a.begin, a.drop, err = adopt(ctx, x.member.candidacy(), p.Lead)
		}
	}
	if err != nil {
		a.leave()
		return err
	}
	x.member.catalog = x.member.candidacy().Fence()
	c := &a.config
	if !p.Backend.Version.KeepsReadOnly() {
		c.Catalog = x.member.catalog.Catalog
	}
	c.Mode, c.Candidacy, c.Worker, c.Nameless, c.Registered = protocol.ModeFenced, s.forCore(), req.Worker, req.Nameless, true
	c.Announced = p.Epoch
	return nil
}

func adopt(ctx context.Context, c fencing.Candidacy, lead []byte) (begin, drop func(), err error) {
	movable, ok := c.(fencing.Movable)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	return movable.Adopt(ctx, lead)
}

// leave undoes joinAgain.
func (a *Arrival) leave() {
	if a.drop != nil {
		a.drop()
	}
	a.x.leave(false)
}

// staysMovable reports whether this process would let the session's client connect in the clear, and write: under the
// session fence, or without a resource.
func (x *session) staysMovable(isFenced bool) bool {
	s := x.srv
	if s.cfg.Console.Is(x.start.Database) || x.start.User == s.cfg.ControlUser || startup.NewReader(x.client, s.cfg.TLS).Admit(x.start) != nil {
		return false
	}
	if x.renamed != "" && !isFenced {
		request := x.joinRequest()
		request.ApplicationName = x.renamed
		if s.cfg.Policy(request).Route.Name != "" {
			return false
		}
	}
	policy, err := x.applyPolicy()
	if err != nil || isFenced != (x.start.Own.Resource != "") {
		return false
	}
	md, err := x.chooseMode(policy)
	x.member.startup.announcePerConnection = policy.AnnouncePerConnection
	x.movable = err == nil && x.isMovable(md, policy)
	return x.movable
}

// Begin serves the session, which the other process has forgotten. Of several that were passed on together, the last one
// begins first.
func (a *Arrival) Begin() {
	x := a.x
	s := x.srv
	if a.begin != nil {
		a.begin()
		a.drop = nil
	}
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
	x.setCore(protocol.New(a.config))
	draining = s.register(x)
	s.countGreeted(x)
	x.logConnection("client taken over")
	if draining {
		x.drain()
	}
	if a.config.Mode == protocol.ModeFenced {
		x.member.startup.StatusChanged() // an earlier call has done nothing
	}
	go x.relay()
}

// Drop forgets the session, which the other process still has, or which has ended with it.
func (a *Arrival) Drop() {
	x := a.x
	a.leave()
	x.srv.keys.remove(x.backend.keyPID)
	_ = x.client.Close()
	_ = x.server.Close()
	x.srv.slots.Give()
}
