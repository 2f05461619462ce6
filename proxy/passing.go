package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/proxyheader"
	"github.com/fencepost/fencepost/proxy/startup"
)

// Passage passes sessions on to another process, some at a time.
type Passage interface {
	// Offer asks the other process to take a session: what this one knows of it, and descriptors of its client and its
	// server, which stay the caller's. Until Commit, that process sends nothing to either side. Offer returns within a
	// bounded time, and no later than ctx ends.
	Offer(ctx context.Context, state []byte, client, server int) error
	// Commit gives away all that the other process has accepted since the last Commit or Drop. After an error, that process
	// has nothing of it.
	Commit() error
	// Drop takes it back.
	Drop()
	// Broken returns why nothing more can be passed, nil if something may.
	Broken() error
}

// passed is what one process tells another of a session, besides its descriptors. The rest of what a session is (prepared
// statements, settings, temporary tables, what it listens to) is in its backend. A change that an older process must not
// overlook needs another version in package upgrade.
type passed struct {
	ID      string
	Startup []byte // of startup.Request.Packet
	Own     startup.Own
	Began   time.Time
	Since   time.Time
	Within  time.Duration  // the other process has to answer; 0 if it is not limited
	Client  netip.AddrPort // the address of the client, as a PROXY header may have named it; invalid on a Unix socket
	Renamed []byte         // the last application_name that the client has set since its startup
	Traffic Traffic

	Host      string // address of the server
	Backend   handshake.Backend
	KeyPID    uint32
	KeySecret []byte
	Carried   protocol.Carried

	// What follows is of a session of a leader.

	Request *fencing.JoinRequest // what it has joined its candidacy with; nil if it is not fenced
	Entry   fencing.Entry        // of the registry
	Epoch   fencing.Epoch        // under which its backend is registered
	// Lead is what Movable.PassOn describes. The last session of a candidacy has it.
	Lead []byte
}

// PassOn is Shutdown, except that sessions are passed on, each when it is at rest: those that may write without a fence,
// and the registered ones of a candidacy that leads, all together. Those that the other process does not take end.
func (s *Server) PassOn(ctx context.Context, to Passage) (Passed, error) {
	passing, cancel := context.WithCancel(ctx)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		passing, cancel = context.WithDeadline(passing, end.Add(-min(time.Until(end)/4, toldWithin)))
		defer cancel()
	}
	s.passing.ctx, s.passing.to, s.passing.groups = passing, to, map[fencing.Candidacy]*leaderGroup{}
	err := s.Shutdown(ctx)
	s.passing.turn.Lock() // some may be being passed on
	defer s.passing.turn.Unlock()
	s.passing.mu.Lock()
	defer s.passing.mu.Unlock()
	return s.passing.result, err
}

// Passed is what has become of the sessions that were to be passed on.
type Passed struct {
	Sessions int   // that were passed on
	Ended    int   // that were not
	Why      error // for the first of these
}

// passed counts sessions that were passed on, or that end because of an error.
func (p *transfers) passed(sessions int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.result.Sessions += sessions
	} else if sessions > 0 {
		p.result.Ended += sessions
		p.result.Why = cmp.Or(p.result.Why, err)
	}
}

// toldWithin is how long before the end of draining nothing is passed on any more, so that the clients of sessions which
// the other process has not accepted by then learn why they end. It may be frozen, and keep their connections open.
const toldWithin = 500 * time.Millisecond

// transfers has what PassOn was given; it is set before the sessions drain.
type transfers struct {
	ctx context.Context
	to  Passage
	// turn is held while sessions are passed on, so that few descriptors are needed at a time. gathering, which is taken
	// first, is held while those of a leader come to rest.
	turn, gathering sync.Mutex

	mu     sync.Mutex
	groups map[fencing.Candidacy]*leaderGroup
	result Passed
}

// broken reports whether nothing more can be passed on.
func (p *transfers) broken() bool {
	p.turn.Lock()
	defer p.turn.Unlock()
	return p.to.Broken() != nil
}

// outcome is what became of a session that was to be passed on.
type outcome uint8

const (
	endsHere outcome = iota // it stays in this process, and ends
	notYet                  // a part of a message is under way, or another session of its worker works: this is tried again
	passedOn                // this process has forgotten it
)

// transfer is a session that is at rest, and whose connections no one reads, because it is being passed on.
type transfer struct {
	x              *session
	state          passed
	client, server netloop.Detachable
	became         chan outcome
}

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
	portable, whole := x.m.Is(protocol.Portable), x.m.Is(protocol.Whole)
	state, ok := x.passedLocked()
	x.mu.Unlock()
	switch {
	case !portable || !ok:
		return endsHere
	case !whole || u.in.have > 0 || !server.Withdraw():
		return notYet
	case u.down.in.have > 0: // a part of a message, after whose rest the down pump wakes this one
		u.down.goOn()
		return notYet
	}
	became := x.srv.part(&transfer{x: x, state: state, client: client, server: server, became: make(chan outcome, 1)})
	if became == passedOn {
		x.forget()
	} else {
		u.down.goOn()
	}
	return became
}

// isToPass reports whether the session is to be passed on when that is possible.
func (x *session) isToPass() bool {
	return x.movable && x.life.phase() == phaseDraining && x.srv.passing.to != nil
}

// part passes a session on, a leader's together with the others of its candidacy.
func (s *Server) part(p *transfer) outcome {
	if p.state.Request != nil {
		lead, ok := p.x.member.candidacy().(fencing.Movable)
		if !ok {
			return endsHere
		}
		return s.leaderGroupOf(lead).join(p)
	}
	err := s.giveAway(s.passing.ctx, []*transfer{p}, nil)
	s.passing.passed(1, err)
	if err != nil {
		p.x.log().Debug("session not passed on", zap.Error(err))
		return endsHere
	}
	return passedOn
}

// passedLocked describes the session to another process. ok is false if its resource has no entry in the registry. The
// session's mu, and sending, are held.
func (x *session) passedLocked() (p passed, ok bool) {
	b := &x.backend
	p = passed{
		ID: x.id, Startup: x.start.Packet(), Own: x.start.Own, Began: x.start.Began, Since: x.since, Renamed: []byte(x.renamed), Traffic: x.traffic(),
		Host: b.server.Address, Backend: b.Backend, KeyPID: b.keyPID, KeySecret: b.keySecret, Carried: x.m.Carried(),
	}
	p.Traffic.add(x.before)
	if tcp, ok := x.client.RemoteAddr().(*net.TCPAddr); ok {
		p.Client = tcp.AddrPort()
	}
	if x.start.Own.Resource == "" {
		return p, true
	}
	r := x.registrations.of(&x.member.startup)
	if r == nil {
		return p, false
	}
	p.Request, p.Entry, p.Epoch = &x.member.request, r.entry, r.epoch
	return p, true
}

// giveAway passes sessions on, all or none, with the candidacy of which they are all, unless that is nil. After an error,
// they are as before, or closed.
func (s *Server) giveAway(ctx context.Context, all []*transfer, lead fencing.Movable) (err error) {
	to := s.passing.to
	s.passing.turn.Lock()
	defer s.passing.turn.Unlock()
	var offered []*transfer
	defer func() {
		if err == nil {
			return
		}
		to.Drop()
		for _, p := range offered {
			p.attach()
		}
	}()
	offer := func(ctx context.Context, p *transfer) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := p.offer(ctx, to); err != nil {
			return err
		}
		offered = append(offered, p)
		return nil
	}
	last := all[len(all)-1]
	for _, p := range all[:len(all)-1] {
		if err := offer(ctx, p); err != nil {
			return err
		}
	}
	end := func(ctx context.Context, described []byte) error {
		last.state.Lead = described
		if err := offer(ctx, last); err != nil {
			return err
		}
		if ctx.Err() != nil { // the lease must be renewed
			return context.Cause(ctx)
		}
		return to.Commit()
	}
	if lead == nil {
		return end(ctx, nil)
	}
	return lead.PassOn(ctx, end)
}

// offer offers a session to the other process. Until attach, no one can read from its connections here.
func (p *transfer) offer(ctx context.Context, to Passage) (err error) {
	if end, ok := ctx.Deadline(); ok {
		p.state.Within = time.Until(end)
	}
	state, err := json.Marshal(p.state)
	if err != nil {
		return fmt.Errorf("describe the session: %w", err)
	}
	var fds [2]int
	for i, conn := range []netloop.Detachable{p.client, p.server} {
		if fds[i], err = conn.Detach(); err != nil {
			return err
		}
		defer unix.Close(fds[i])
		defer func() {
			if err != nil && conn.Attach() != nil {
				p.x.abort()
			}
		}()
	}
	return to.Offer(ctx, state, fds[0], fds[1])
}

// attach undoes offer.
func (p *transfer) attach() {
	for _, conn := range []netloop.Detachable{p.client, p.server} {
		if conn.Attach() != nil {
			p.x.abort()
		}
	}
}

// forget ends the session in this process, without a word to either side.
func (x *session) forget() {
	x.stopReading(nil)
	close(x.downGone)
	x.close()
	x.srv.slots.Give()
	x.srv.end(socketBelow(x.client))
}
