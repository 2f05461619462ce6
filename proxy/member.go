package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// membership is a session's part in the candidacy of its worker. A session without a
// resource has none: cand and crew are nil.
type membership struct {
	// claim is what the session has joined with first, and tellEach the setting of its policy.
	// They and crew are set during the startup, before the candidacy knows of the session.
	claim    fencing.JoinRequest
	tellEach bool
	crew     *crew
	// joinedTo is set before standing becomes joined. The up pump replaces it, between two
	// transactions, while standing is outside.
	joinedTo atomic.Pointer[belonging]
	// token is that of the candidacy. Only the session's own goroutine uses it.
	token int64
	// catalog is that of the database, nil if no read of the session has to be proven. Only the
	// session's own goroutine uses it. leaveCatalog is set for a session without a resource
	// that uses it.
	catalog      fencing.CatalogReader
	leaveCatalog func()

	// discards: the session goes on when it is superseded, and its writes are discarded. tables: while its worker does
	// not lead, only guards refuse its writes. Both are set before standing becomes joined.
	discards, tables bool

	// shadow is set, before standing becomes joined, for a session whose resource is in shadow:
	// nothing ends it, and it is told nothing.
	shadow *beside

	standing atomic.Uint32 // a standing; the candidacy's loop reads and sets it too
	left     sync.Once

	// retires is until when the backend is ended once the session is at rest, because a grant waits for it: a time in
	// Unix nanoseconds, 0 if none does.
	retires atomic.Int64
	// retiresFor is the seat because of which, nil if that is the candidacy of the startup.
	retiresFor atomic.Pointer[seat]
	// away: the session has chosen other resources than that of its startup.
	away atomic.Bool
	// over is the seat because of which standing is superseded, nil if that is the candidacy above.
	over     atomic.Pointer[seat]
	seats    map[string]*seat // by their resources; guarded by the session's mu
	tellings []telling        // guarded by the session's mu
}

// belonging is a candidacy that a session belongs to.
type belonging struct {
	fencing.Candidacy
	ended sync.Once // endsSuperseded has been called
}

// telling is an epoch of a candidacy that is announced to the client, until the client sends something again.
// That is taken to show that it has read the announcement. A Terminate counts too, because a
// pool that drops a connection at an error sends nothing else; a client that gives up without
// reading sends the same.
type telling struct {
	to    fencing.Candidacy
	epoch fencing.Epoch
	sent  time.Time // just before that
}

// standing says what a session knows of its membership. It only increases, except that a
// session which leaves its candidacy for another one is outside meanwhile.
type standing = uint32

const (
	// outside: the session has not joined a candidacy.
	outside standing = iota
	// joined: cand is set.
	joined
	// superseded: the candidacy is over, because another worker was granted an epoch.
	superseded
)

var _ fencing.Member = (*session)(nil)

// StatusChanged implements fencing.Member. When the candidacy is superseded, it closes the
// server connection at once, which ends the backend. The client is told at its next use, so
// that its connection pool sees an error, and does not silently replace the connection. A
// session whose stale writes are discarded goes on.
func (x *session) StatusChanged() {
	if !x.member.away.Load() {
		x.endIfOwnSuperseded()
	}
}

// endIfOwnSuperseded ends the session if the candidacy of its startup is superseded.
func (x *session) endIfOwnSuperseded() {
	m := &x.member
	if !fencing.Checking || m.standing.Load() == outside || m.shadow != nil {
		return
	}
	st := m.candidacy().Status()
	if goesOn := m.discards && fencing.Discardable(st); st.Role == fencing.Superseded && !goesOn && m.standing.CompareAndSwap(joined, superseded) {
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

// become makes the session a member of c, which Join has returned.
func (m *membership) become(c fencing.Candidacy) { m.joinedTo.Store(&belonging{Candidacy: c}) }

func (x *session) isSuperseded() bool { return x.member.standing.Load() == superseded }

// supersededRefusal is what the client of a superseded session is told.
func (x *session) supersededRefusal() *fencing.Refusal {
	m := &x.member
	cand, resource := m.ended().Candidacy, x.start.own.resource
	if s := m.over.Load(); s != nil {
		resource = s.resource
	}
	return fencing.SupersededRefusal(resource, m.claim.Worker, cand.Incarnation(), cand.Status())
}

// ended returns the candidacy because of which the session is superseded, if it is.
func (m *membership) ended() *belonging {
	if s := m.over.Load(); s != nil {
		return s.joinedTo.Load()
	}
	return m.joinedTo.Load()
}

// tells records that e, an epoch of c, is about to be announced to the client; 0 is none. The
// session's mu is held.
func (m *membership) tells(c fencing.Candidacy, e fencing.Epoch) {
	if e != 0 && m.shadow == nil {
		m.tellings = append(m.tellings, telling{c, e, time.Now()})
	}
}

// beside is what a session in shadow has done for it while its client does not wait.
type beside struct {
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func newBeside() *beside {
	b := &beside{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// doing returns a function that has f done in the background, unless it is being done. It must
// not be called after end.
func (b *beside) doing(limit time.Duration, f func(context.Context)) func() {
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

// end waits until nothing is done any more. b may be nil.
func (b *beside) end() {
	if b != nil {
		b.cancel()
		b.all.Wait()
	}
}

// hears informs the candidacies of what the client has read, when bytes have arrived from it.
// The session's mu is held.
func (m *membership) hears() {
	for _, t := range m.tellings {
		t.to.AnnouncementRead(t.epoch, t.sent, time.Now())
	}
	m.tellings = m.tellings[:0]
}

// endsSuperseded informs the candidacy that the connection ends because it is superseded, before the
// client can learn that. Only the first call for a candidacy has an effect.
func (b *belonging) endsSuperseded() { b.ended.Do(b.ConnectionSuperseded) }

// leavesSuperseded is endsSuperseded of a connection that ends for any reason, if the candidacy is superseded.
// The session may not know that yet, or have gone on. b may be nil.
func (b *belonging) leavesSuperseded() {
	if b != nil && b.Status().Role == fencing.Superseded {
		b.endsSuperseded()
	}
}

// rejoin has the session leave its candidacy for that of the token which its client has set. If
// that fails, it stays in the one that it has, as it does if the token is the same or the client
// only observes. The refusal of a token that is lower than the recorded one is returned, because
// the session must end then. The client has sent what it decided to send by began.
func (x *session) rejoin(ctx context.Context, token int64, began time.Time) (lower *fencing.Refusal) {
	defer while(&x.active.busy)()
	m, claim := &x.member, x.member.claim
	claim.Token = token
	if claim.Campaign == fencing.CampaignOff || token == m.token && m.candidacy().Status().Role != fencing.Superseded {
		x.answer(protocol.Answer{Need: protocol.NeedJoin})
		return nil
	}
	x.letGo(ctx)
	x.StatusChanged() // the candidacy may not have told it yet
	if former := m.joinedTo.Load(); former.Status().Role == fencing.Superseded {
		former.ConnectionSuperseded() // more than once if SET fails
	}
	if !m.standing.CompareAndSwap(joined, outside) {
		return nil // superseded, which the client is told next
	}
	ctx, stopClient := untilGone(ctx, x.client, goneWait, errClientGone)
	defer stopClient()
	// The grant for a higher token supersedes the candidacy that this session is about to leave.
	joining, stop := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	cand, err := x.srv.cfg.Candidates.Join(joining, claim, x)
	stop()
	if err == nil {
		if before := m.candidacy(); before != cand {
			before.Leave(x, true)
		}
		m.become(cand)
		m.catalog, m.token = cand.Fence(), claim.Token
	}
	m.standing.CompareAndSwap(outside, joined)
	x.StatusChanged() // an earlier call has done nothing
	if err != nil {
		r := startupRefusal(err)
		if r.SQLState == fencing.StateSuperseded {
			m.joinedTo.Load().leavesSuperseded()
			return r
		}
		x.answer(protocol.Answer{Need: protocol.NeedJoin, Refusal: r})
		return nil
	}
	_ = cand.AwaitFirst(ctx, x.srv.cfg.StartupWait) // the status says how it went
	x.rejoined(began)
	return nil
}

// rejoined tells the core about the candidacy that the session has joined at the given time.
func (x *session) rejoined(began time.Time) {
	c := x.describe()
	c.Announced = x.knownEpoch(c.Status(), began)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.member.tellings = x.member.tellings[:0] // of the candidacy before
	x.m.Answer(protocol.Answer{Need: protocol.NeedJoin, Joined: &c})
}

// leave ends the membership. Only the first call has an effect on the candidacy. orderly
// says that the client has sent Terminate.
func (x *session) leave(orderly bool) {
	if m := &x.member; m.candidacy() != nil {
		m.left.Do(func() {
			if !orderly {
				m.joinedTo.Load().leavesSuperseded()
			}
			m.candidacy().Leave(x, orderly)
			x.leaveSeats(orderly)
		})
	}
	if x.member.leaveCatalog != nil {
		x.member.leaveCatalog()
	}
	x.srv.crews.leave(x)
}
