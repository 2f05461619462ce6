package proxy

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// seat is a session's part in the candidacy of a resource that its client has named in addition to
// that of the startup. It lasts as long as the session.
type seat struct {
	x                     *session
	resource              string
	announcePerConnection bool // as in membership
	joinedTo              atomic.Pointer[joinedCandidacy]
	// forSession: the resource is chosen for the session, which then ends when the candidacy is superseded.
	// A transaction that has chosen it for itself is ended by the grant.
	forSession  atomic.Bool
	taken       atomic.Uint64 // as in activity
	knownToCore bool          // the core knows it; only the session's own goroutine uses it
}

var _ fencing.Member = (*seat)(nil)

// Activity implements fencing.Member.
func (s *seat) Activity() (received uint64, owed bool) { return s.x.activitySince(&s.taken) }

// StatusChanged implements fencing.Member.
func (s *seat) StatusChanged() {
	if s.forSession.Load() {
		s.endIfSuperseded()
	}
}

// EpochEnds implements fencing.Member.
func (s *seat) EpochEnds(d fencing.Drain) { s.x.epochEnds(s.resource, s, d) }

// endIfSuperseded ends the session if the seat's candidacy is superseded.
func (s *seat) endIfSuperseded() {
	m, b := &s.x.member, s.joinedTo.Load()
	if !fencing.Checking || b == nil || b.Status().Role != fencing.Superseded || m.state.Load() != joined {
		return
	}
	m.supersededSeat.CompareAndSwap(nil, s)
	if m.state.CompareAndSwap(joined, superseded) {
		_ = s.x.server.Close()
	}
}

func (s *seat) candidacy() fencing.Candidacy { return s.joinedTo.Load().Candidacy }

// candidacyFor returns the candidacy of a resource that the client has named, or that of the startup
// for "".
func (x *session) candidacyFor(resource string) *joinedCandidacy {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.member.candidacyFor(resource)
}

// candidacyFor is the same for a caller that holds the session's mu.
func (m *membership) candidacyFor(resource string) *joinedCandidacy {
	if resource == "" {
		return m.joinedTo.Load()
	}
	return m.seats[resource].joinedTo.Load()
}

// fencedSeats returns the seats of what the client has chosen for the transaction in hand.
func (x *session) fencedSeats() (seats []*seat) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, resource := range x.m.FencedResources() {
		if s := x.member.seats[resource]; s != nil && !slices.Contains(seats, s) {
			seats = append(seats, s)
		}
	}
	return seats
}

// leaveSeats ends the session's part in all candidacies but that of the startup.
func (x *session) leaveSeats(orderly bool) {
	x.mu.Lock()
	seats := slices.Collect(maps.Values(x.member.seats))
	x.mu.Unlock()
	for _, s := range seats {
		if !orderly {
			s.joinedTo.Load().noteIfSuperseded()
		}
		s.candidacy().Leave(s, orderly)
	}
}

// choose joins the candidacies of the resources that the client has chosen, and gives them
// to the core. The client had sent that at the given time or before.
func (x *session) choose(ctx context.Context, need protocol.JoinNeed, at time.Time) {
	defer while(&x.active.busy)()
	ctx, stop := untilGone(ctx, x.client, goneWait, errClientGone)
	defer stop()
	answer := protocol.Answer{Need: protocol.NeedJoin}
	seats, refusal := x.seatsFor(ctx, need.Resources)
	if refusal != nil {
		answer.Refusal = refusal
		x.answer(answer)
		return
	}
	x.awaitFirst(ctx, seats)
	for i, s := range seats {
		answer.Chosen = append(answer.Chosen, x.chosenCandidacy(need.Resources[i], s, at))
	}
	if !need.Local {
		x.endIfSuperseded(seats)
	}
	x.answer(answer)
}

// seatsFor returns the seats of these resources, nil for that of the startup. Those that there are
// none of yet join the candidacy, once it is known that no limit and no policy refuses one of them.
func (x *session) seatsFor(ctx context.Context, resources []string) (seats []*seat, _ *fencing.Refusal) {
	var missing []*seat
	for _, resource := range resources {
		var s *seat
		if resource != x.member.request.Resource {
			x.mu.Lock()
			s = x.member.seats[resource]
			others := len(x.member.seats) + len(missing)
			x.mu.Unlock()
			if s == nil {
				if most := x.srv.cfg.ResourcesPerConnection(); most > 0 && others >= most {
					return nil, fencing.TooManyChosenRefusal(resource, most)
				}
				var refusal *fencing.Refusal
				if s, refusal = x.newSeat(resource); refusal != nil {
					return nil, refusal
				}
				missing = append(missing, s)
			}
		}
		seats = append(seats, s)
	}
	if refusal := x.joinAll(ctx, missing); refusal != nil {
		return nil, refusal
	}
	return seats, nil
}

// joinAll joins the candidacies of all seats, side by side, or of none.
func (x *session) joinAll(ctx context.Context, seats []*seat) (first *fencing.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	defer cancel()
	refusals := make([]*fencing.Refusal, len(seats))
	var joins sync.WaitGroup
	for i, s := range seats {
		joins.Go(func() { refusals[i] = x.joinSeat(ctx, s) })
	}
	joins.Wait()
	i := slices.IndexFunc(refusals, func(r *fencing.Refusal) bool { return r != nil })
	if i < 0 {
		return nil
	}
	for j, s := range seats {
		if refusals[j] == nil {
			x.mu.Lock()
			delete(x.member.seats, s.resource)
			x.mu.Unlock()
			s.candidacy().Leave(s, true)
		}
	}
	return refusals[i]
}

// newSeat returns a seat that has joined nothing.
func (x *session) newSeat(resource string) (*seat, *fencing.Refusal) {
	request := x.joinRequest()
	request.Resource = resource
	policy := x.srv.cfg.Policy(request)
	switch {
	case policy.Refusal != nil:
		return nil, policy.Refusal
	case policy.Shadow:
		return nil, fencing.ChooseRefusal(resource, "it is in shadow")
	case policy.OnStale == DiscardStale:
		return nil, fencing.ChooseRefusal(resource, "its stale writes are discarded")
	}
	return &seat{x: x, resource: resource, announcePerConnection: policy.AnnouncePerConnection}, nil
}

// joinSeat joins the candidacy of the seat's resource.
func (x *session) joinSeat(ctx context.Context, s *seat) *fencing.Refusal {
	req := x.member.request
	req.Resource, req.Token = s.resource, 0
	cand, err := x.srv.cfg.Candidates.Join(ctx, req, s)
	if err != nil {
		return refusals.Startup(err)
	}
	s.joinedTo.Store(&joinedCandidacy{Candidacy: cand})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.member.seats == nil {
		x.member.seats = map[string]*seat{}
	}
	x.member.seats[s.resource] = s
	return nil
}

// awaitFirst waits for the first attempts of the candidacies in which the session is new, for
// StartupWait at most.
func (x *session) awaitFirst(ctx context.Context, seats []*seat) {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	for _, s := range seats {
		if s != nil && !s.knownToCore {
			_ = s.candidacy().AwaitFirst(ctx, x.srv.cfg.StartupWait) // the status says how it went
		}
	}
}

// chosenCandidacy is what the core has to know of a resource that the client has chosen. The first
// time, the client may count as knowing its epoch, as at startup.
func (x *session) chosenCandidacy(resource string, s *seat, at time.Time) *protocol.Candidacy {
	if s == nil {
		return nil
	}
	cand := s.candidacy()
	c := &protocol.Candidacy{Resource: resource, Incarnation: cand.Incarnation(), Status: cand.Status, Trouble: cand.Trouble}
	if !s.knownToCore {
		c.Announced = knownEpoch(cand, s.announcePerConnection, cand.Status(), at)
		s.knownToCore = true
	}
	return c
}

// endIfSuperseded ends the session at once if one of the candidacies that its client is choosing for
// it is superseded. No seats, and a nil one, mean the candidacy of the startup.
func (x *session) endIfSuperseded(seats []*seat) {
	if len(seats) == 0 || slices.Contains(seats, nil) {
		x.endIfOwnSuperseded()
	}
	for _, s := range seats {
		if s != nil {
			s.endIfSuperseded()
		}
	}
}

// setChosen makes the session end when its worker is superseded on one of these resources, and on no other. No
// resources mean that of the startup.
func (x *session) setChosen(resources []string) {
	x.mu.Lock()
	seats := slices.Collect(maps.Values(x.member.seats))
	x.mu.Unlock()
	x.member.choseOthers.Store(len(resources) > 0 && !slices.Contains(resources, x.member.request.Resource))
	for _, s := range seats {
		s.forSession.Store(slices.Contains(resources, s.resource))
	}
	x.StatusChanged() // an earlier call has done nothing
	for _, s := range seats {
		s.StatusChanged()
	}
}
