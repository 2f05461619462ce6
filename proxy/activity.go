package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/crew"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/upstream"
)

// activity is what the candidacy's loop must know about a session. The session keeps it in
// atomics, because the loop also starts renewals and must never wait for a session's lock.
type activity struct {
	pending atomic.Bool // the session expects a reply of the server
	// busy: the proxy itself does something for the client, for a bounded time (the startup,
	// for example), or the up pump waits because the server accepts no more bytes or has too
	// many replies pending.
	busy          atomic.Bool
	writing       atomic.Bool // a write to the client is under way
	waitingToLead atomic.Bool // the session waits for the lead in its startup, or for its server just after that
	stuck         atomic.Bool // when its crew was last polled, the server waited for the worker itself
	// auditing: a refused statement is being recorded, and what the server has sent after it is not read meanwhile. That
	// may last for as long as a disk is full, while no one works for the client.
	auditing atomic.Bool

	transactions atomic.Uint64 // how many have ended, as of the last bytes of the server

	// moved is why the session ends if its server is not the one to which its address leads, nil if that is not known.
	moved atomic.Pointer[fencing.Refusal]

	takenByCrew atomic.Uint64 // how many bytes the client had accepted when its crew was last polled
}

// isWorking reports whether the server, or the proxy, is working for the client. It reports
// false while a write to the client is under way and the client has accepted no bytes since
// the last call: the client is the one that does not continue then. It also reports false while a
// refusal is being recorded. last holds how many bytes the client had accepted at the last call.
func (a *activity) isWorking(client link, last *atomic.Uint64) bool {
	if taken := socketBelow(client).Written(); a.writing.Load() && last.Swap(taken) == taken {
		return false
	}
	return !a.auditing.Load() && (a.busy.Load() || a.pending.Load())
}

// activitySince is Activity of a seat. last is as isWorking needs it.
func (x *session) activitySince(last *atomic.Uint64) (received uint64, owed bool) {
	received = socketBelow(x.client).Received()
	if !x.active.isWorking(x.client, last) {
		x.active.stuck.Store(false)
		return received, false
	}
	if x.canBePolled() {
		x.member.place.RequestPoll()
	}
	return received, !x.active.stuck.Load()
}

var _ crew.Session = (*session)(nil)

// canBePolled reports whether the session's startup is over and its candidacy is set. A
// shutdown can end the startup before the session has joined.
func (x *session) canBePolled() bool {
	return x.life.phase() != phaseStarting && x.member.state.Load() != outside
}

// Poll implements crew.Session.
func (x *session) Poll() (pid uint32, working bool) {
	if !x.canBePolled() {
		return 0, false
	}
	return x.backend.PID, x.active.isWorking(x.client, &x.active.takenByCrew)
}

// SetStuck implements crew.Session.
func (x *session) SetStuck(stuck bool) { x.active.stuck.Store(stuck) }

// Fence implements crew.Session.
func (x *session) Fence() fencing.Fence { return x.member.candidacy().Fence() }

// update is called with x.mu held whenever the core has taken something.
func (x *session) update() {
	if works := x.m.Is(protocol.Working); works != x.active.pending.Load() {
		x.active.pending.Store(works)
		if !works {
			x.since = time.Now()
		}
	}
	if n := x.m.Transactions(); n != x.active.transactions.Load() {
		x.active.transactions.Store(n)
	}
}

// while sets a flag until the function that it returns is called.
func while(flag *atomic.Bool) (end func()) {
	flag.Store(true)
	return func() { flag.Store(false) }
}

const (
	// hangEvery is the time between two looks at which sessions wait for their servers.
	hangEvery = time.Second
	// hangAfter is how long a session waits before Fencepost asks where the address of its server leads, and again
	// before it asks the next time.
	hangAfter = 5 * time.Second
	// askedAtOnce is how many databases are asked at the same time where their address leads.
	askedAtOnce = 8
)

// errElsewhere is the answer that ends a round of questions.
var errElsewhere = errors.New("the address leads to another server")

// hanging is a session's wait for its server.
type hanging struct {
	since time.Time // or when it was last asked where the address leads
	taken uint64    // how many bytes the client had accepted then
}

// endHanging ends the sessions that wait for a server to which its address does not lead any more, until ctx ends. Such a
// server may be gone without a trace: then TCP continues for minutes before it reports that. The worker would keep its
// lease meanwhile, or be given one, because the server to which the address leads now answers.
func (s *Server) endHanging(ctx context.Context) {
	tick := time.NewTicker(hangEvery)
	defer tick.Stop()
	var waits map[*session]hanging
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		var due []*session
		waits, due = s.hanging(waits, time.Now())
		endIfMoved(ctx, due)
	}
}

// hanging returns which sessions wait at now, and those of them whose wait is due. was is what it returned before.
func (s *Server) hanging(was map[*session]hanging, now time.Time) (waits map[*session]hanging, due []*session) {
	waits = make(map[*session]hanging)
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.mu.sessions {
		awaits := x.active.waitingToLead.Load()
		if !awaits && !x.canBePolled() || x.isSuperseded() || x.member.shadow != nil || !x.active.busy.Load() && !x.active.pending.Load() {
			continue
		}
		h, waited := was[x]
		taken := socketBelow(x.client).Written()
		if awaits { // its client gets notices of what it waits for
			taken = 0
		}
		if !waited || h.taken != taken {
			h = hanging{now, taken}
		} else if now.Sub(h.since) >= hangAfter {
			h.since, due = now, append(due, x)
		}
		waits[x] = h
	}
	return waits, due
}

// endIfMoved ends those of the sessions to whose servers the address does not lead any more.
func endIfMoved(ctx context.Context, due []*session) {
	at := make(map[string][]*session) // by when their servers were started
	for _, x := range due {
		if started := x.backend.Started; started != "" {
			at[started] = append(at[started], x)
		}
	}
	for started, sessions := range at {
		if !elsewhere(ctx, started, sessions) {
			continue
		}
		var ended sync.WaitGroup
		for _, x := range sessions {
			host := x.backend.server.Address
			x.log().Warn("session ended: its server is no longer the one that its address leads to", zap.String("host", host))
			ended.Go(func() {
				why := (&upstream.DemotedError{Host: host, By: host}).Refusal()
				x.active.moved.Store(why)
				x.endWithServer(why)
			})
		}
		ended.Wait()
	}
}

// elsewhere reports whether the address of these sessions leads to another server than the one that was started then. It
// leads all databases to one server, so it is enough that one says so, and one that cannot be asked says nothing of others.
func elsewhere(ctx context.Context, started string, sessions []*session) bool {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(askedAtOnce)
	asked := make(map[string]bool)
	for _, x := range sessions {
		if asked[x.start.Database] {
			continue
		}
		asked[x.start.Database] = true
		g.Go(func() error {
			if x.member.candidacy().Fence().Elsewhere(ctx, started) {
				return errElsewhere // the others need not be asked
			}
			return nil
		})
	}
	return g.Wait() != nil
}
