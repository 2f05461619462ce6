package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// The sessions of a leader can only go on in another process together with its lease, which one process has at a time.
// So those that come to rest wait for a moment, while what their clients send stays in the kernel. If the others do not
// come to rest meanwhile, all continue, and this is tried again after a pause. One leader at a time is passed on, so that
// none waits for others.
const (
	// firstGather is how long the first ones wait at first; maxGather is how long they wait at most.
	firstGather = 100 * time.Millisecond
	maxGather   = time.Second
	// gatherPause is how long they work between two attempts.
	gatherPause = time.Second
	// lookEvery is how often it is noticed that a session has ended which the others wait for.
	lookEvery = 10 * time.Millisecond
	// maxRefused is how often the other process, which may only be slow, may refuse them.
	maxRefused = 3
)

var errNotAtRest = errors.New("the sessions of a leader were not all outside a transaction at the same time")

// leaderGroup is the sessions of a candidacy that leads, while they are to be passed on together.
type leaderGroup struct {
	srv  *Server
	lead fencing.Movable
	came chan struct{} // cap 1; a session waits

	refused int   // so far
	why     error // for which the sessions are still here

	mu      sync.Mutex
	gathers bool // sessions at rest wait for the others
	over    bool // the candidacy was passed on, or stays here: what is still here ends at rest
	waiting map[*session]*transfer
}

// leaderGroupOf returns the group of a candidacy, which passes its sessions on in a goroutine of its own.
func (s *Server) leaderGroupOf(c fencing.Movable) *leaderGroup {
	s.passing.mu.Lock()
	defer s.passing.mu.Unlock()
	g := s.passing.groups[c]
	if g == nil {
		g = &leaderGroup{srv: s, lead: c, came: make(chan struct{}, 1), why: errNotAtRest, waiting: map[*session]*transfer{}}
		s.passing.groups[c] = g
		s.checks.Go(func() { g.run(s.passing.ctx) }) // a session, for which Close waits first, has called this
	}
	return g
}

// join waits until the session is passed on with the others, or may continue.
func (g *leaderGroup) join(p *transfer) outcome {
	g.mu.Lock()
	switch {
	case g.over:
		g.mu.Unlock()
		return endsHere
	case !g.gathers:
		g.mu.Unlock()
		return notYet
	}
	g.waiting[p.x] = p
	g.mu.Unlock()
	select {
	case g.came <- struct{}{}:
	default:
	}
	return <-p.became
}

// run passes the sessions on when all are at rest at once. They stay if ctx ends before that.
func (g *leaderGroup) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.srv.ctx, cancel)()
	for patience := firstGather; !g.try(ctx, patience); patience = min(2*patience, maxGather) {
		select {
		case <-time.After(gatherPause):
		case <-ctx.Done():
		}
	}
}

// try passes the sessions on if all are at rest within patience. over says that it is not tried again: those that are
// still here end at rest.
func (g *leaderGroup) try(ctx context.Context, patience time.Duration) (over bool) {
	g.srv.passing.gathering.Lock()
	defer g.srv.passing.gathering.Unlock()
	members := g.members()
	over = len(members) == 0
	if all := g.gather(ctx, members, patience); all != nil {
		over = g.passOn(ctx, all)
	}
	if ctx.Err() != nil && !over {
		over = true
		g.srv.passing.passed(len(members), g.why)
	}
	g.release(over)
	return over
}

// gather returns those of the sessions that are left when they wait at rest, nil if they do not within patience.
func (g *leaderGroup) gather(ctx context.Context, members []*session, patience time.Duration) []*transfer {
	g.mu.Lock()
	g.gathers = true
	g.mu.Unlock()
	for _, x := range members {
		x.wakeUpPump()
	}
	late, look := time.NewTimer(patience), time.NewTicker(lookEvery)
	defer late.Stop()
	defer look.Stop()
	for {
		if all := g.complete(members); all != nil {
			return all
		}
		select {
		case <-g.came:
		case <-look.C:
		case <-late.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// complete returns the sessions that are left if all of them wait, and otherwise nil.
func (g *leaderGroup) complete(members []*session) (all []*transfer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range members {
		switch p := g.waiting[x]; {
		case p != nil:
			all = append(all, p)
		case x.isRegistered():
			return nil
		}
	}
	return all
}

// members returns the sessions of the candidacy whose backends are registered. The server drains, so that no more come.
func (g *leaderGroup) members() (all []*session) {
	s := g.srv
	s.mu.Lock()
	sessions, _ := s.openLocked()
	s.mu.Unlock()
	for _, x := range sessions {
		if x.member.candidacy() == fencing.Candidacy(g.lead) && x.isRegistered() {
			all = append(all, x)
		}
	}
	return all
}

// isRegistered reports whether the session goes on, and its backend is registered.
func (x *session) isRegistered() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.m != nil && x.m.Is(protocol.Registered) && x.life.phase() != phaseEnding
}

// passOn passes all of these sessions on, with their candidacy. over says that this has happened, or is not tried again.
func (g *leaderGroup) passOn(ctx context.Context, all []*transfer) (over bool) {
	err := g.srv.giveAway(ctx, all, g.lead)
	g.refused++
	over = err == nil || g.refused == maxRefused || g.srv.passing.broken()
	if over {
		g.srv.passing.passed(len(all), err)
	}
	if err != nil {
		g.why = err
		g.srv.cfg.Logger.Warn("the sessions of a leader were not passed on", zap.String("resource", all[0].state.Request.Resource),
			zap.String("worker", all[0].state.Request.Worker), zap.Int("sessions", len(all)), zap.Int("tried", g.refused), zap.Error(err))
		return over
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range all {
		delete(g.waiting, p.x)
		p.became <- passedOn
	}
	return true
}

// release ends the wait of the sessions that wait still.
func (g *leaderGroup) release(over bool) {
	became := notYet
	if over {
		became = endsHere
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gathers, g.over = false, over
	for _, p := range g.waiting {
		p.became <- became
	}
	clear(g.waiting)
}
