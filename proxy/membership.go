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

// membership is a session's part in the candidacy of one resource: that of the startup, or one that its client has
// chosen since. It lasts as long as the session.
type membership struct {
	x                     *session
	resource              string
	announcePerConnection bool // the setting of the resource's policy
	// discards: the session continues when the candidacy is superseded, and its writes are discarded. Only that of
	// the startup can.
	discards bool
	// joinedTo is nil before the session has joined the candidacy. While the session is outside, the up pump replaces
	// that of the startup.
	joinedTo atomic.Pointer[joinedCandidacy]
	// forSession: the session goes by the resource, and ends when the candidacy is superseded. A transaction that has
	// chosen the resource for itself is ended by the grant.
	forSession  atomic.Bool
	taken       atomic.Uint64 // how many bytes the client had accepted when Activity was last called
	knownToCore bool          // the core knows it; only the session's own goroutine uses it
}

// joinedCandidacy is a candidacy that a session belongs to.
type joinedCandidacy struct {
	fencing.Candidacy
	noted sync.Once // noteSuperseded was called
}

var _ fencing.Member = (*membership)(nil)

// Activity implements fencing.Member. It does not block.
func (s *membership) Activity() (received uint64, owed bool) { return s.x.activitySince(&s.taken) }

// StatusChanged implements fencing.Member.
func (s *membership) StatusChanged() {
	if s.forSession.Load() {
		s.endIfSuperseded()
	}
}

// EpochEnds implements fencing.Member. The backend of a registered session is ended, or unregistered, once the session
// is at rest, so that the grant need not end it. If the grant has ended it, and it still exists because it sends what
// the client does not read, it ends when the connection to it is closed.
func (s *membership) EpochEnds(d fencing.Drain) {
	x := s.x
	x.mu.Lock()
	defer x.mu.Unlock()
	r := x.registrations.of(s)
	switch {
	case x.m == nil, r == nil, r.epoch > d.Epoch:
	case slices.Contains(d.Ended, int32(x.backend.PID)):
		_ = x.server.Close()
	case s.forSession.Load(): // what was chosen for one transaction is unregistered after it
		r.retireUntil = time.Now().Add(retireWithin)
		x.retireAtRest()
	}
}

// endIfSuperseded ends the session if the candidacy is superseded, unless the session continues, or is in shadow.
func (s *membership) endIfSuperseded() {
	b := s.joinedTo.Load()
	if !fencing.Checking || b == nil || s.x.member.shadow != nil {
		return
	}
	if st := b.Status(); st.Role == fencing.Superseded && !(s.discards && fencing.Discardable(st)) {
		s.x.supersede(s)
	}
}

// candidacy returns the candidacy that the session has joined, nil if it has not.
func (s *membership) candidacy() fencing.Candidacy {
	if b := s.joinedTo.Load(); b != nil {
		return b.Candidacy
	}
	return nil
}

// join makes the session a member of the candidacy that the request asks for.
func (s *membership) join(ctx context.Context, req fencing.JoinRequest) error {
	cand, err := s.x.srv.cfg.Candidates.Join(ctx, req, s)
	if err == nil {
		s.joinedTo.Store(&joinedCandidacy{Candidacy: cand})
	}
	return err
}

// leave ends the session's part in the candidacy. orderly says that the client has sent Terminate.
func (s *membership) leave(orderly bool) {
	b := s.joinedTo.Load()
	if b == nil {
		return
	}
	if !orderly {
		b.noteIfSuperseded()
	}
	b.Leave(s, orderly)
}

// noteSuperseded notes in the candidacy that the connection ends because it is superseded, before the
// client can learn that. Only the first call for a candidacy has an effect.
func (b *joinedCandidacy) noteSuperseded() { b.noted.Do(b.ConnectionSuperseded) }

// noteIfSuperseded is noteSuperseded of a connection that ends for any reason, if the candidacy is superseded.
// The session may not know that yet, or have continued. b may be nil.
func (b *joinedCandidacy) noteIfSuperseded() {
	if b != nil && b.Status().Role == fencing.Superseded {
		b.noteSuperseded()
	}
}

// supersededRefusal is what the client gets once the candidacy has superseded the session.
func (s *membership) supersededRefusal() *fencing.Refusal {
	cand := s.candidacy()
	return fencing.SupersededRefusal(s.resource, s.x.member.request.Worker, cand.Incarnation(), cand.Status())
}

// forCore returns what the core has to know of the candidacy.
func (s *membership) forCore() protocol.Candidacy {
	cand := s.candidacy()
	return protocol.Candidacy{Resource: s.resource, Incarnation: cand.Incarnation, Status: cand.Status, Trouble: cand.Trouble}
}

// knownEpoch returns the epoch of st, a status of the candidacy, if the client of a session that has joined at the
// given time counts as knowing it as soon as it has read the reply; otherwise 0. If the worker was superseded before, a
// driver may have opened this connection in order to send a statement again that was decided under an earlier epoch.
func (s *membership) knownEpoch(st *fencing.Status, at time.Time) fencing.Epoch {
	cand := s.candidacy()
	if knows := !cand.SupersededBefore() || !s.announcePerConnection && cand.KnewAt(st.Epoch, at); st.CanWrite() && knows {
		return st.Epoch
	}
	return 0
}

// membership returns the session's membership for a resource, nil if it has none.
func (x *session) membership(resource string) *membership {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.member.membershipLocked(resource)
}

func (m *memberships) membershipLocked(resource string) *membership {
	if resource == m.startup.resource {
		return &m.startup
	}
	return m.chosen[resource]
}

// memberships returns all memberships of the session. The first one is that of the startup.
func (x *session) memberships() []*membership {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.AppendSeq([]*membership{&x.member.startup}, maps.Values(x.member.chosen))
}

// choose joins the candidacies of the resources that the client has chosen, and gives them
// to the core. The client had sent that at the given time or before.
func (x *session) choose(ctx context.Context, need protocol.JoinNeed, at time.Time) {
	defer while(&x.active.busy)()
	ctx, stop := untilGone(ctx, x.client, goneWait, errClientGone)
	defer stop()
	memberships, refusal := x.membershipsFor(ctx, need.Resources)
	if refusal != nil {
		x.answer(protocol.Answer{Need: protocol.NeedJoin, Refusal: refusal})
		return
	}
	x.awaitFirst(ctx, memberships)
	answer := protocol.Answer{Need: protocol.NeedJoin}
	for _, s := range memberships {
		c := s.forCore()
		if !s.knownToCore { // the client may count as knowing its epoch, as at startup
			c.Announced = s.knownEpoch(c.Status(), at)
			s.knownToCore = true
		}
		answer.Chosen = append(answer.Chosen, c)
		if !need.Local {
			s.endIfSuperseded()
		}
	}
	x.answer(answer)
}

// membershipsFor returns the memberships for these resources. Those that are new join the candidacies, once it is known
// that no limit and no policy refuses one of them.
func (x *session) membershipsFor(ctx context.Context, resources []string) (memberships []*membership, _ *fencing.Refusal) {
	var missing []*membership
	for _, resource := range resources {
		x.mu.Lock()
		s, chosen := x.member.membershipLocked(resource), len(x.member.chosen)+len(missing)
		x.mu.Unlock()
		if s == nil {
			if most := x.srv.cfg.ResourcesPerConnection(); most > 0 && chosen >= most {
				return nil, fencing.TooManyChosenRefusal(resource, most)
			}
			var refusal *fencing.Refusal
			if s, refusal = x.newMembership(resource); refusal != nil {
				return nil, refusal
			}
			missing = append(missing, s)
		}
		memberships = append(memberships, s)
	}
	if refusal := x.joinAll(ctx, missing); refusal != nil {
		return nil, refusal
	}
	return memberships, nil
}

// joinAll joins the candidacies of all these new memberships, side by side, or of none.
func (x *session) joinAll(ctx context.Context, memberships []*membership) *fencing.Refusal {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	defer cancel()
	failed := make([]error, len(memberships))
	var joins sync.WaitGroup
	for i, s := range memberships {
		joins.Go(func() {
			req := x.member.request
			req.Resource, req.Token = s.resource, 0
			failed[i] = s.join(ctx, req)
		})
	}
	joins.Wait()
	if i := slices.IndexFunc(failed, func(err error) bool { return err != nil }); i >= 0 {
		for _, s := range memberships {
			s.leave(true)
		}
		return refusals.Startup(failed[i])
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range memberships {
		if x.member.chosen == nil {
			x.member.chosen = map[string]*membership{}
		}
		x.member.chosen[s.resource] = s
	}
	return nil
}

// setStartupResource says for which resource the membership of the startup is. The session goes by it until its client
// chooses others.
func (x *session) setStartupResource(resource string) {
	s := &x.member.startup
	s.x, s.resource = x, resource
	s.forSession.Store(true)
}

// newMembership returns a membership that has joined nothing.
func (x *session) newMembership(resource string) (*membership, *fencing.Refusal) {
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
	return &membership{x: x, resource: resource, announcePerConnection: policy.AnnouncePerConnection}, nil
}

// awaitFirst waits for the first attempts of the candidacies in which the session is new, for
// StartupWait at most.
func (x *session) awaitFirst(ctx context.Context, memberships []*membership) {
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	for _, s := range memberships {
		if !s.knownToCore {
			_ = s.candidacy().AwaitFirst(ctx, x.srv.cfg.StartupWait) // the status says how it went
		}
	}
}

// setChosen makes the session end when its worker is superseded on one of these resources, and on no other.
func (x *session) setChosen(resources []string) {
	memberships := x.memberships()
	for _, s := range memberships {
		s.forSession.Store(slices.Contains(resources, s.resource))
	}
	for _, s := range memberships {
		s.StatusChanged() // an earlier call has done nothing
	}
}
