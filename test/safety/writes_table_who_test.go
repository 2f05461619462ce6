package safety

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// standingOf is where the sender of a write stands.
type standingOf int

const (
	follower standingOf = iota
	followerSaying
	unfenced // without a resource, held to reads
	lapsed
	superseded
	unaware // superseded, and its proxy does not know
	unawareSaying
	leader
)

// standingsOf are all of them. Who is saying tells its connection the true epoch
// by SET fencepost.epoch before it writes.
var standingsOf = []standingOf{follower, followerSaying, unfenced, lapsed, superseded, unaware, unawareSaying, leader}

func (w standingOf) String() string {
	return [...]string{"follower", "follower saying the epoch", "without a resource", "lapsed", "superseded", "superseded unknown", "superseded unknown saying the epoch", "leader"}[w]
}

// led reports that the sender led before its standing changed.
func (w standingOf) led() bool { return w >= lapsed }

func (w standingOf) saying() bool { return w == followerSaying || w == unawareSaying }

// lasts reports that a connection can serve several cells.
func (w standingOf) lasts() bool { return w <= lapsed }

// table runs cells at one cluster.
type table struct {
	*writesCluster
	server string
	fence  *store.Fence
	holder *fixture.FakeCandidacy // who was granted the current epoch
	worker string                 // its name
	epoch  int64
	last   map[string]*speaker // connections that last
	live   int                 // connections of the workers to the fenced side
	begun  time.Time           // when the cells were
	spent  [leader + 1]time.Duration
	ran    [leader + 1]int
	twice  int    // cells of which the mark alone did not tell
	seen   string // the mark, if nothing has come since that is allowed to change it
	dirty  bool   // the fenced side may hold other than it did to start from
}

func newTable(t *testing.T, server string) *table {
	t.Helper()
	h := newWritesCluster(t, numberOf(server))
	st := fixture.OpenStore(t, store.Config{
		Address: h.PG.Addr(), Database: h.fenced.db, User: pgtest.Superuser, Grace: 50 * time.Millisecond, Patience: fixture.Patience,
	})
	h.Elector.UseStore(h.fenced.db, st)
	x := &table{writesCluster: h, server: server, last: map[string]*speaker{}, fence: fixture.Fence(t, st, "r")}
	h.reset(t, h.fenced)
	if err := x.grant(); err != nil {
		t.Fatal(err)
	}
	return x
}

// grant makes a new candidacy lead. The one before knows nothing of it.
func (x *table) grant() error {
	x.seen = ""
	x.worker = fmt.Sprintf("w%d", x.Elector.Next())
	x.holder = x.Elector.NewCandidacy(x.fenced.db, x.worker, x.fence)
	epoch, err := x.holder.TryGrant()
	x.epoch = int64(epoch)
	return err
}

// open connects one who stands so, or will.
func (x *table) open(c cell) *speaker {
	var more []string
	switch {
	case c.who == unfenced:
	case c.who.led():
		more = []string{"options", "-c fencepost.resource=r -c fencepost.worker=" + x.worker}
	default:
		more = []string{"options", "-c fencepost.resource=r -c fencepost.worker=follower"}
	}
	x.live++
	conn, _ := wiretest.Connect(x.t, x.Addr, x.params(c.path, x.fenced, more...)...)
	return &speaker{Conn: conn, epoch: x.epoch}
}

// speaker is a connection for a cell: one that served another, if that can be.
func (x *table) speaker(c cell) *speaker {
	key := c.who.String() + c.path.user()
	s := x.last[key]
	delete(x.last, key)
	if s != nil && c.who == lapsed && s.epoch != x.epoch {
		x.close(s)
		s = nil
	}
	if s == nil {
		return x.open(c)
	}
	s.all = nil
	return s
}

// done keeps the connection of a cell for another, or ends it.
func (x *table) done(c cell, s *speaker) {
	if c.who.lasts() && len(c.path.before) == 0 && !s.ended && s.err == nil {
		mark := len(s.all)
		s.send([]sending{ask1(Sync()), ask1(Q("rollback")), ask1(Q("discard all"))})
		if !s.ended && s.err == nil && wiretest.ErrorOf(s.all[mark:]) == "" {
			x.last[c.who.String()+c.path.user()] = s
			return
		}
	}
	x.close(s)
}

func (x *table) close(s *speaker) {
	if s.err == nil {
		leaveNow(s.Conn)
	}
	_ = s.Close()
	x.live--
}

func (x *table) closeAll() {
	for key, s := range x.last {
		x.close(s)
		delete(x.last, key)
	}
}

// change makes the sender stand as the cell says. Who did not lead goes on when
// the server waits for more of what was sent.
func (x *table) change(c cell) error {
	was := x.holder
	led := *was.Status()
	switch c.who {
	case lapsed:
		led.Role, led.Lapsed = fencing.Follower, true
		was.SetStatus(&led)
	case superseded:
		if err := x.grant(); err != nil {
			return err
		}
		led.Role, led.Holder = fencing.Superseded, fencing.Record{Epoch: x.holder.Status().Epoch, Worker: x.worker}
		was.SetStatus(&led)
	case unaware, unawareSaying:
		return x.grant()
	}
	return nil
}

// undo takes a lapse back.
func (x *table) undo(c cell, was *fixture.FakeCandidacy) {
	if st := *was.Status(); c.who == lapsed && st.Lapsed {
		st.Role, st.Lapsed = fencing.Leader, false
		was.SetStatus(&st)
	}
}
