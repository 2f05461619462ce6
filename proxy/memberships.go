package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/workers"
)

// memberships is a session's part in the candidacies of its worker. A session without a resource has none: its
// startup has joined nothing, and place is nil.
type memberships struct {
	// request is what the session has joined with at the startup. It and place are set before the session joins.
	request fencing.JoinRequest
	place   *workers.Place // among the sessions of its worker
	startup membership
	chosen  map[string]*membership // the other memberships, by their resources; guarded by the session's mu
	// token is that of the startup's candidacy. Only the session's own goroutine uses it.
	token int64
	// catalog is that of the database, nil if no read of the session has to be proven. Only the
	// session's own goroutine uses it. leaveCatalog is set for a session without a resource
	// that uses it.
	catalog      fencing.CatalogReader
	leaveCatalog func()

	// tables: while its worker does not lead, only guards refuse its writes. It is set before state becomes joined.
	tables bool
	// shadow is set, before state becomes joined, for a session whose resource is in shadow:
	// nothing ends it, and nothing is announced to it.
	shadow *background

	// state is outside, joined, or the membership whose candidacy has superseded the session, which is final. Anyone may
	// read it. While a session leaves its candidacy for that of another token, it is outside.
	state     atomic.Pointer[membership]
	leaveOnce sync.Once

	unreadEpochs []unreadEpoch // guarded by the session's mu
}

// Values of memberships.state.
var (
	outside *membership       // the session has joined no candidacy
	joined  = new(membership) // it has joined that of its startup
)

// unreadEpoch is an epoch of a candidacy that is announced to the client, until the client sends something again.
// That is taken to show that it has read the announcement. A Terminate counts too, because a
// pool that drops a connection at an error sends nothing else; a client that gives up without
// reading sends the same.
type unreadEpoch struct {
	candidacy fencing.Candidacy
	epoch     fencing.Epoch
	sent      time.Time // just before that
}

// supersededBy returns the membership whose candidacy has superseded the session, nil if none has.
func (x *session) supersededBy() *membership {
	if s := x.member.state.Load(); s != joined {
		return s
	}
	return nil
}

func (x *session) isSuperseded() bool { return x.supersededBy() != nil }

// supersede makes the session superseded, because the candidacy of s is. It closes the server connection at once, which
// ends the backend. The client gets the error at its next use, so that its connection pool sees an error, and does not
// silently replace the connection.
func (x *session) supersede(s *membership) {
	if x.member.state.CompareAndSwap(joined, s) {
		_ = x.server.Close()
	}
}

// candidacy returns the candidacy of the startup, nil if the session is a member of none.
func (m *memberships) candidacy() fencing.Candidacy { return m.startup.candidacy() }

// addUnreadEpoch records that e, an epoch of c, is about to be announced to the client; 0 is none. The
// session's mu is held.
func (m *memberships) addUnreadEpoch(c fencing.Candidacy, e fencing.Epoch) {
	if e != 0 && m.shadow == nil {
		m.unreadEpochs = append(m.unreadEpochs, unreadEpoch{c, e, time.Now()})
	}
}

// markEpochsRead reports the announcements to the candidacies as read, because bytes have arrived from the client.
// The session's mu is held.
func (m *memberships) markEpochsRead() {
	for _, t := range m.unreadEpochs {
		t.candidacy.AnnouncementRead(t.epoch, t.sent, time.Now())
	}
	m.unreadEpochs = m.unreadEpochs[:0]
}

// rejoin has the session leave its candidacy for that of the token which its client has set. If
// that fails, it stays in the one that it has, as it does if the token is the same or the client
// only observes. The refusal of a token that is lower than the recorded one is returned, because
// the session must end then. The client has sent what it decided to send by began.
func (x *session) rejoin(ctx context.Context, token int64, began time.Time) (lower *fencing.Refusal) {
	defer while(&x.active.busy)()
	m, s, req := &x.member, &x.member.startup, x.member.request
	req.Token = token
	former := s.joinedTo.Load()
	if req.Campaign == fencing.CampaignOff || token == m.token && former.Status().Role != fencing.Superseded {
		x.answer(protocol.Answer{Need: protocol.NeedJoin})
		return nil
	}
	x.unregisterAll(ctx)
	s.StatusChanged() // the candidacy may not have called it yet
	if former.Status().Role == fencing.Superseded {
		former.ConnectionSuperseded() // more than once if SET fails
	}
	if !m.state.CompareAndSwap(joined, outside) {
		return nil // superseded, as the client learns next
	}
	ctx, stopClient := untilGone(ctx, x.client, goneWait, errClientGone)
	defer stopClient()
	// The grant for a higher token supersedes the candidacy that this session is about to leave.
	joining, stop := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	err := s.join(joining, req)
	stop()
	if err == nil {
		if former.Candidacy != s.candidacy() {
			former.Leave(s, true)
		}
		m.catalog, m.token = s.candidacy().Fence(), token
	}
	m.state.CompareAndSwap(outside, joined)
	s.StatusChanged() // an earlier call has done nothing
	if err != nil {
		r := refusals.Startup(err)
		if r.SQLState == fencing.StateSuperseded {
			former.noteIfSuperseded()
			return r
		}
		x.answer(protocol.Answer{Need: protocol.NeedJoin, Refusal: r})
		return nil
	}
	_ = s.candidacy().AwaitFirst(ctx, x.srv.cfg.StartupWait) // the status says how it went
	c := s.forCore()
	c.Announced = s.knownEpoch(c.Status(), began)
	x.mu.Lock()
	defer x.mu.Unlock()
	m.unreadEpochs = m.unreadEpochs[:0] // of the candidacy before
	x.m.Answer(protocol.Answer{Need: protocol.NeedJoin, Joined: &c})
	return nil
}

// leave ends the memberships. Only the first call has an effect on the candidacies. orderly
// says that the client has sent Terminate.
func (x *session) leave(orderly bool) {
	x.member.leaveOnce.Do(func() {
		for _, s := range x.memberships() {
			s.leave(orderly)
		}
	})
	if x.member.leaveCatalog != nil {
		x.member.leaveCatalog()
	}
	x.member.place.Leave()
}
