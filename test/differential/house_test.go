package differential

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/proxy"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// house is a proxy in front of a real Postgres. The tests say who is granted;
// the fence in the database is the real one.
type house struct {
	pg   *pgtest.Server
	addr string

	mu    sync.Mutex
	seats map[string]*seat // by database and worker
}

// newHouse starts a proxy in front of the server of that major version.
func newHouse(t *testing.T, major int) *house {
	t.Helper()
	h := &house{pg: pgtest.SharedMajor(t, major), seats: map[string]*seat{}}
	srv, err := proxy.NewServer(proxy.Config{Upstream: h.pg.Addr(), Candidates: h, ProxyID: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
		srv.Close()
	})
	return h
}

// seat is one worker's candidacy. It knows nothing of other workers' grants
// until it looks.
type seat struct {
	fence       *store.Fence
	worker      string
	incarnation string
	standing    atomic.Pointer[fencing.Standing]

	mu      sync.Mutex
	members map[fencing.Member]bool
}

// sit makes a new candidacy for the worker, in place of the one it had.
func (h *house) sit(database, worker string, f *store.Fence) *seat {
	s := &seat{fence: f, worker: worker, members: map[fencing.Member]bool{}}
	s.incarnation = worker + "#" + strconv.FormatInt(awards.Add(1), 10)
	s.standing.Store(&fencing.Standing{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seats[database+"/"+worker] = s
	return s
}

// Join implements fencing.Candidates.
func (h *house) Join(_ context.Context, c fencing.Claim, m fencing.Member) (fencing.Candidacy, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.seats[c.Database+"/"+c.Worker]
	if s == nil {
		return nil, errors.New("no such worker")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members[m] = true
	return s, nil
}

// awards numbers them, in order.
var awards atomic.Int64

// grant gives the candidacy an epoch, through the store.
func (s *seat) grant() error {
	epoch, err := s.fence.Grant(context.Background(), fencing.Award{
		Resource: s.fence.Resource(), Worker: s.worker, Incarnation: s.incarnation,
		Source: "test", Marker: "test", Index: awards.Add(1), Held: s.Standing().Epoch,
	})
	if err != nil {
		return fmt.Errorf("grant to %s: %w", s.worker, err)
	}
	s.set(&fencing.Standing{Role: fencing.Leader, Epoch: epoch, Holder: fencing.Record{Epoch: epoch, Worker: s.worker}})
	return nil
}

func (s *seat) set(st *fencing.Standing) {
	s.standing.Store(st)
	s.mu.Lock()
	members := make([]fencing.Member, 0, len(s.members))
	for m := range s.members {
		members = append(members, m)
	}
	s.mu.Unlock()
	for _, m := range members {
		m.StandingChanged()
	}
}

func (s *seat) Standing() *fencing.Standing          { return s.standing.Load() }
func (s *seat) Incarnation() string                  { return s.incarnation }
func (s *seat) Fence() fencing.Fence                 { return s.fence }
func (s *seat) SupersededBefore() bool               { return false }
func (s *seat) AwaitFirst(context.Context) error     { return nil }
func (s *seat) AwaitConfirmed(context.Context) error { return nil }
func (s *seat) AwaitLeader(context.Context) error    { return nil }
func (s *seat) Demand(context.Context)               {}

func (s *seat) Advanced(ctx context.Context) bool {
	rec, err := s.fence.Record(ctx)
	if err != nil || rec.Incarnation == s.incarnation || s.Standing().Epoch == 0 {
		return false
	}
	st := *s.Standing()
	st.Role, st.Holder = fencing.Superseded, rec
	s.set(&st)
	return true
}

func (s *seat) Leave(m fencing.Member, _ bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.members, m)
}

// room is one database with the tables that scripts work on, and a connection
// past the proxy to look at them.
type room struct {
	house    *house
	database string
	admin    *pgx.Conn
	fence    *store.Fence // nil where no proxy comes
	fresh    string       // its contents when it is new
}

func newRoom(t *testing.T, h *house, fenced bool) *room {
	t.Helper()
	r := &room{house: h, database: h.pg.Database(t)}
	r.admin = h.pg.Connect(t, pgtest.Superuser, r.database)
	if fenced {
		st, err := store.Open(t.Context(), store.Config{
			Address: h.pg.Addr(), Database: r.database, User: pgtest.Control, Grace: 20 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(st.Close)
		if r.fence, err = st.Fence(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.do(rebuild + furniture); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.fresh, err = r.contents(); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *room) do(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := r.admin.Exec(ctx, sql); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	return nil
}

// contents is all that scripts can have written.
func (r *room) contents() (all string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = r.admin.QueryRow(ctx, contentsSQL, pgx.QueryExecModeCacheStatement).Scan(&all)
	if err != nil {
		return "", fmt.Errorf("look at the contents: %w", err)
	}
	return all, nil
}

// tidy makes the room new again, of which contents were seen.
func (r *room) tidy(contents string) error {
	if contents == r.fresh {
		return nil
	}
	if r.do(refill) == nil {
		if now, err := r.contents(); err != nil || now == r.fresh {
			return err
		}
	}
	if err := r.do(rebuild + furniture); err != nil {
		return err
	}
	now, err := r.contents()
	if err == nil && now != r.fresh {
		err = fmt.Errorf("the room cannot be made new: it is\n%s\nand was\n%s", now, r.fresh)
	}
	return err
}

// direct plays s on Postgres itself.
func (r *room) direct(s script) (outcome, error) {
	socket := filepath.Join(r.house.pg.SocketDir(), ".s.PGSQL."+strconv.Itoa(r.house.pg.Port()))
	t, err := play("unix", socket, r.params(), s, nil, nil)
	return r.outcome(t, err)
}

// proxied plays s through Fencepost, as worker w.
func (r *room) proxied(s script, like []bool, before func(int)) (outcome, error) {
	t, err := play("tcp", r.house.addr, r.ownParams(), s, like, before)
	return r.outcome(t, err)
}

func (r *room) ownParams() []string {
	return append(r.params(), "options", "-c fencepost.resource=r -c fencepost.worker=w")
}

func (r *room) params() []string {
	return []string{"user", pgtest.App, "database", r.database, "client_encoding", "UTF8"}
}

// outcome is what a script led to.
type outcome struct {
	transcript
	contents string
}

// outcome looks at the database, and makes it new again.
func (r *room) outcome(t transcript, err error) (outcome, error) {
	o := outcome{transcript: t}
	if err != nil {
		return o, err
	}
	if o.contents, err = r.contents(); err != nil {
		return o, err
	}
	return o, r.tidy(o.contents)
}
