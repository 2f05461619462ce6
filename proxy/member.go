package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/crew"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// membership is a session's part in the candidacy of its worker. A session without a
// resource has none: joinedTo and place are nil.
type membership struct {
	// request is what the session has joined with first, and announcePerConnection the setting of its policy.
	// They and place are set during the startup, before the session joins the candidacy.
	request               fencing.JoinRequest
	announcePerConnection bool
	place                 *crew.Place // in its crew
	// joinedTo is set before state becomes joined. The up pump replaces it, between two
	// transactions, while state is outside.
	joinedTo atomic.Pointer[joinedCandidacy]
	// token is that of the candidacy. Only the session's own goroutine uses it.
	token int64
	// catalog is that of the database, nil if no read of the session has to be proven. Only the
	// session's own goroutine uses it. leaveCatalog is set for a session without a resource
	// that uses it.
	catalog      fencing.CatalogReader
	leaveCatalog func()

	// discards: the session continues when it is superseded, and its writes are discarded. tables: while its worker does
	// not lead, only guards refuse its writes. Both are set before state becomes joined.
	discards, tables bool

	// shadow is set, before state becomes joined, for a session whose resource is in shadow:
	// nothing ends it, and nothing is announced to it.
	shadow *background

	state     atomic.Uint32 // a memberState; the candidacy's loop reads and sets it too
	leaveOnce sync.Once

	// retireUntil, if not 0, is until when the backend is ended once the session is at rest, because a grant waits for
	// it: a time in Unix nanoseconds.
	retireUntil atomic.Int64
	// retiringSeat is the seat for whose resource that grant is, nil for the resource of the startup.
	retiringSeat atomic.Pointer[seat]
	// choseOthers: the session has chosen other resources than that of its startup.
	choseOthers atomic.Bool
	// supersededSeat is the seat whose candidacy was superseded, nil if it is that of the startup.
	supersededSeat atomic.Pointer[seat]
	seats          map[string]*seat // by their resources; guarded by the session's mu
	unreadEpochs   []unreadEpoch    // guarded by the session's mu
}

// joinedCandidacy is a candidacy that a session belongs to.
type joinedCandidacy struct {
	fencing.Candidacy
	noted sync.Once // noteSuperseded was called
}

// unreadEpoch is an epoch of a candidacy that is announced to the client, until the client sends something again.
// That is taken to show that it has read the announcement. A Terminate counts too, because a
// pool that drops a connection at an error sends nothing else; a client that gives up without
// reading sends the same.
type unreadEpoch struct {
	candidacy fencing.Candidacy
	epoch     fencing.Epoch
	sent      time.Time // just before that
}

// memberState says what a session knows of its membership. It only increases, except that a
// session which leaves its candidacy for another one is outside meanwhile.
type memberState = uint32

const (
	// outside: the session has not joined a candidacy.
	outside memberState = iota
	// joined: joinedTo is set.
	joined
	// superseded: the candidacy is over, because another worker was granted an epoch.
	superseded
)

var _ fencing.Member = (*session)(nil)

// StatusChanged implements fencing.Member. When the candidacy is superseded, it closes the
// server connection at once, which ends the backend. The client gets the error at its next use, so
// that its connection pool sees an error, and does not silently replace the connection. A
// session whose stale writes are discarded continues.
func (x *session) StatusChanged() {
	if !x.member.choseOthers.Load() {
		x.endIfOwnSuperseded()
	}
}

// endIfOwnSuperseded ends the session if the candidacy of its startup is superseded.
func (x *session) endIfOwnSuperseded() {
	m := &x.member
	if !fencing.Checking || m.state.Load() == outside || m.shadow != nil {
		return
	}
	st := m.candidacy().Status()
	if continues := m.discards && fencing.Discardable(st); st.Role == fencing.Superseded && !continues && m.state.CompareAndSwap(joined, superseded) {
		_ = x.server.Close()
	}
}

// candidacy returns the candidacy that the session is a member of, nil if it is of none.
func (m *membership) candidacy() fencing.Candidacy {
	if b := m.joinedTo.Load(); b != nil {
		return b.Candidacy
	}
	return nil
}

// setCandidacy makes the session a member of c, which Join has returned.
func (m *membership) setCandidacy(c fencing.Candidacy) {
	m.joinedTo.Store(&joinedCandidacy{Candidacy: c})
}

func (x *session) isSuperseded() bool { return x.member.state.Load() == superseded }

// supersededRefusal is what the client of a superseded session gets.
func (x *session) supersededRefusal() *fencing.Refusal {
	m := &x.member
	cand, resource := m.supersededCandidacy().Candidacy, x.start.Own.Resource
	if s := m.supersededSeat.Load(); s != nil {
		resource = s.resource
	}
	return fencing.SupersededRefusal(resource, m.request.Worker, cand.Incarnation(), cand.Status())
}

// supersededCandidacy returns the candidacy whose end has superseded the session, or that of the startup.
func (m *membership) supersededCandidacy() *joinedCandidacy {
	if s := m.supersededSeat.Load(); s != nil {
		return s.joinedTo.Load()
	}
	return m.joinedTo.Load()
}

// addUnreadEpoch records that e, an epoch of c, is about to be announced to the client; 0 is none. The
// session's mu is held.
func (m *membership) addUnreadEpoch(c fencing.Candidacy, e fencing.Epoch) {
	if e != 0 && m.shadow == nil {
		m.unreadEpochs = append(m.unreadEpochs, unreadEpoch{c, e, time.Now()})
	}
}

// background is the work for a session in shadow for which its client does not wait.
type background struct {
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func newBackground() *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// trigger returns a function that starts f in the background, unless f is running. It must
// not be called after end.
func (b *background) trigger(limit time.Duration, f func(context.Context)) func() {
	var busy atomic.Bool
	return func() {
		if !busy.CompareAndSwap(false, true) {
			return
		}
		b.all.Go(func() {
			ctx, cancel := context.WithTimeout(b.ctx, limit)
			defer cancel()
			f(ctx)
			busy.Store(false)
		})
	}
}

// end cancels the work and waits for it. b may be nil.
func (b *background) end() {
	if b != nil {
		b.cancel()
		b.all.Wait()
	}
}

// markEpochsRead reports the announcements to the candidacies as read, because bytes have arrived from the client.
// The session's mu is held.
func (m *membership) markEpochsRead() {
	for _, t := range m.unreadEpochs {
		t.candidacy.AnnouncementRead(t.epoch, t.sent, time.Now())
	}
	m.unreadEpochs = m.unreadEpochs[:0]
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

// rejoin has the session leave its candidacy for that of the token which its client has set. If
// that fails, it stays in the one that it has, as it does if the token is the same or the client
// only observes. The refusal of a token that is lower than the recorded one is returned, because
// the session must end then. The client has sent what it decided to send by began.
func (x *session) rejoin(ctx context.Context, token int64, began time.Time) (lower *fencing.Refusal) {
	defer while(&x.active.busy)()
	m, req := &x.member, x.member.request
	req.Token = token
	if req.Campaign == fencing.CampaignOff || token == m.token && m.candidacy().Status().Role != fencing.Superseded {
		x.answer(protocol.Answer{Need: protocol.NeedJoin})
		return nil
	}
	x.unregisterAll(ctx)
	x.StatusChanged() // the candidacy may not have called it yet
	if former := m.joinedTo.Load(); former.Status().Role == fencing.Superseded {
		former.ConnectionSuperseded() // more than once if SET fails
	}
	if !m.state.CompareAndSwap(joined, outside) {
		return nil // superseded, as the client learns next
	}
	ctx, stopClient := untilGone(ctx, x.client, goneWait, errClientGone)
	defer stopClient()
	// The grant for a higher token supersedes the candidacy that this session is about to leave.
	joining, stop := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	cand, err := x.srv.cfg.Candidates.Join(joining, req, x)
	stop()
	if err == nil {
		if before := m.candidacy(); before != cand {
			before.Leave(x, true)
		}
		m.setCandidacy(cand)
		m.catalog, m.token = cand.Fence(), req.Token
	}
	m.state.CompareAndSwap(outside, joined)
	x.StatusChanged() // an earlier call has done nothing
	if err != nil {
		r := refusals.Startup(err)
		if r.SQLState == fencing.StateSuperseded {
			m.joinedTo.Load().noteIfSuperseded()
			return r
		}
		x.answer(protocol.Answer{Need: protocol.NeedJoin, Refusal: r})
		return nil
	}
	_ = cand.AwaitFirst(ctx, x.srv.cfg.StartupWait) // the status says how it went
	x.rejoined(began)
	return nil
}

// rejoined gives the core the candidacy that the session has joined at the given time.
func (x *session) rejoined(began time.Time) {
	c := x.coreCandidacy()
	c.Announced = knownEpoch(x.member.candidacy(), x.member.announcePerConnection, c.Status(), began)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.member.unreadEpochs = x.member.unreadEpochs[:0] // of the candidacy before
	x.m.Answer(protocol.Answer{Need: protocol.NeedJoin, Joined: &c})
}

// leave ends the membership. Only the first call has an effect on the candidacy. orderly
// says that the client has sent Terminate.
func (x *session) leave(orderly bool) {
	if m := &x.member; m.candidacy() != nil {
		m.leaveOnce.Do(func() {
			if !orderly {
				m.joinedTo.Load().noteIfSuperseded()
			}
			m.candidacy().Leave(x, orderly)
			x.leaveSeats(orderly)
		})
	}
	if x.member.leaveCatalog != nil {
		x.member.leaveCatalog()
	}
	x.member.place.Leave()
}
