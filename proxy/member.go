package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// membership is a session's part in the candidacy of its worker. A session without a
// resource has none: cand and crew are nil.
type membership struct {
	// worker is the worker's id. It, cand and crew are set once, during the startup: crew
	// before the candidacy knows of the session, cand before standing becomes joined.
	worker string
	cand   fencing.Candidacy
	crew   *crew
	// catalog is that of the database, nil if no read of the session has to be proven.
	// leaveCatalog is set for a session without a resource that uses it.
	catalog      fencing.CatalogReader
	leaveCatalog func()

	// discards: the session goes on when it is superseded, and its writes are discarded. It is
	// set before standing becomes joined.
	discards bool

	// shadow is set, before standing becomes joined, for a session whose resource is in shadow:
	// nothing ends it, and it is told nothing.
	shadow *beside

	standing atomic.Uint32 // a standing; the candidacy's loop reads and sets it too
	left     sync.Once
	ended    sync.Once // endsSuperseded has been called
	telling  telling   // guarded by the session's mu
}

// telling is an epoch that is announced to the client, until the client sends something again.
// That is taken to show that it has read the announcement. A Terminate counts too, because a
// pool that drops a connection at an error sends nothing else; a client that gives up without
// reading sends the same.
type telling struct {
	epoch fencing.Epoch // 0: none
	sent  time.Time     // just before that
}

// standing says what a session knows of its membership. It only increases.
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
	m := &x.member
	if !fencing.Checking || m.standing.Load() == outside || m.shadow != nil {
		return
	}
	st := m.cand.Status()
	if goesOn := m.discards && fencing.Discardable(st); st.Role == fencing.Superseded && !goesOn {
		m.standing.Store(superseded)
		_ = x.server.Close()
	}
}

func (x *session) isSuperseded() bool { return x.member.standing.Load() == superseded }

// supersededRefusal is what the client of a superseded session is told.
func (x *session) supersededRefusal() *fencing.Refusal {
	m := &x.member
	return fencing.SupersededRefusal(x.start.own.resource, m.worker, m.cand.Incarnation(), m.cand.Status())
}

// tells records that e is about to be announced to the client; 0 is none. The session's mu is
// held.
func (m *membership) tells(e fencing.Epoch) {
	if e != 0 && m.shadow == nil {
		m.telling = telling{e, time.Now()}
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

// hears informs the candidacy of what the client has read, when bytes have arrived from it.
// The session's mu is held.
func (m *membership) hears() {
	if t := m.telling; t.epoch != 0 {
		m.telling = telling{}
		m.cand.Told(t.epoch, t.sent, time.Now())
	}
}

// endsSuperseded informs the candidacy that the connection ends because it is superseded, or
// that its writes are discarded, before the client can learn that. Only the first call has an effect.
func (m *membership) endsSuperseded() { m.ended.Do(m.cand.TellsSuperseded) }

// leave ends the membership. Only the first call has an effect on the candidacy. orderly
// says that the client has sent Terminate.
func (x *session) leave(orderly bool) {
	if m := &x.member; m.cand != nil {
		if x.isSuperseded() && !orderly {
			m.endsSuperseded()
		}
		m.left.Do(func() { m.cand.Leave(x, orderly) })
	}
	if x.member.leaveCatalog != nil {
		x.member.leaveCatalog()
	}
	x.srv.crews.leave(x)
}
