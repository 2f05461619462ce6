package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/upstream"
)

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

// endHanging ends the sessions that wait for a server to which its address does not lead any more, until ctx ends. Such
// a server may be gone without a trace: then TCP continues for minutes before it reports that. The worker would keep
// its lease meanwhile, or be given one, because the server to which the address leads now answers.
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

// elsewhere reports whether the address of these sessions leads to another server than the one that was started then.
// It leads all databases to one server, so it is enough that one says so, and one that cannot be asked says nothing of
// others.
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
