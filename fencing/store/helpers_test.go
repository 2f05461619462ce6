package store_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// unfenced runs the safety tests with registrations switched off. Each of them must then
// fail.
var unfenced = os.Getenv("FENCEPOST_TEST_UNFENCED") == "1"

const (
	resource = "billing"
	patience = 60 * time.Second
)

// testDatabase is one database with a fence, and the helpers to use it.
type testDatabase struct {
	t      *testing.T
	server *pgtest.Server
	db     string
	store  *store.Store
	fence  *store.Fence
	index  int64 // of the last award
}

func newTestDatabase(t *testing.T, s *pgtest.Server, change ...func(*store.Config)) *testDatabase {
	t.Helper()
	h := &testDatabase{t: t, server: s, db: s.Database(t)}
	s.Exec(t, pgtest.Control, h.db, "SELECT fencepost.admit('"+pgtest.App+"')") // see begin
	h.store = h.open(change...)
	h.fence = h.newFence(h.store)
	return h
}

// open opens another store, as another proxy would.
func (h *testDatabase) open(change ...func(*store.Config)) *store.Store {
	h.t.Helper()
	cfg := store.Config{Address: h.server.Addr(), Database: h.db, User: pgtest.Control, Grace: 100 * time.Millisecond, Patience: 10 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	st := fixture.OpenStore(h.t, cfg)
	h.t.Cleanup(st.Close)
	return st
}

func (h *testDatabase) newFence(st *store.Store) *store.Fence {
	h.t.Helper()
	f := fixture.Fence(h.t, st, resource)
	h.number(f, "life-1")
	return f
}

// number gives an instance of the lease service its number, as a proxy does before it
// asks for a lease.
func (h *testDatabase) number(f *store.Fence, marker string) {
	h.t.Helper()
	if err := f.Number(h.ctx(), "test", marker); err != nil {
		h.t.Fatal(err)
	}
}

// ctx returns a context that bounds one step of a test.
func (h *testDatabase) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

// award returns the next award, to a candidacy of that name.
func (h *testDatabase) award(name string) fencing.Award {
	h.index++
	return fencing.Award{Resource: resource, Worker: "worker-" + name, Incarnation: "incarnation-" + name,
		Source: "test", InstanceID: "life-1", Index: h.index}
}

// grant grants the next award, which must succeed.
func (h *testDatabase) grant(name string) fencing.Term {
	h.t.Helper()
	a := h.award(name)
	epoch, err := h.fence.Grant(h.ctx(), a)
	if err != nil {
		h.t.Fatalf("grant to %s: %v", name, err)
	}
	return fencing.Term{Award: a, Epoch: epoch}
}

// worker is one connection of a worker.
type worker struct {
	*pgx.Conn
	fence   *store.Fence
	term    fencing.Term
	started string // when its server was started; set by entry
	seen    string // a time at which it had its backend
}

func (h *testDatabase) worker(term fencing.Term) *worker {
	h.t.Helper()
	return &worker{Conn: h.server.Connect(h.t, pgtest.App, h.db), fence: h.fence, term: term}
}

// check finds out whether the worker's backend may be registered, with the worker's epoch announced to it.
func (w *worker) check(ctx context.Context) error {
	return w.checkAs(ctx, w.term.Epoch, w.term.Epoch)
}

func (w *worker) checkAs(ctx context.Context, told, held fencing.Epoch) error {
	if unfenced {
		return nil
	}
	entry := w.entry()
	entry.Announced, entry.Held = told, held
	note, err := w.fence.RegisterBackend(ctx, entry)
	if err == nil {
		err = w.fence.UnregisterBackend(ctx, note)
	}
	return err
}

// begin starts a transaction that a grant waits for: it claims the worker's epoch past the proxy.
func (w *worker) begin(ctx context.Context, t testing.TB, isolation pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := w.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation, AccessMode: pgx.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	if unfenced {
		return tx
	}
	if _, err := tx.Exec(ctx, "SELECT fencepost.claim($1, $2)", w.term.Resource, int64(w.term.Epoch)); err != nil {
		t.Fatalf("claim epoch %d: %v", w.term.Epoch, err)
	}
	return tx
}

// stateOf returns the SQLSTATE of a refusal or of a server error.
func stateOf(err error) string {
	var refusal *fencing.Refusal
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &refusal):
		return refusal.SQLState
	case errors.As(err, &pg):
		return pg.Code
	case err != nil:
		return err.Error()
	}
	return ""
}

// hintOf returns the hint of a refusal, by this process or by the database.
func hintOf(err error) string {
	var refusal *fencing.Refusal
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &refusal):
		return refusal.Hint
	case errors.As(err, &pg):
		return pg.Hint
	default:
		return ""
	}
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ask reads one value as the superuser.
func ask[T any](h *testDatabase, sql string, args ...any) T {
	h.t.Helper()
	return pgtest.Ask[T](h.t, h.server, h.db, sql, args...)
}

// waiting reports whether a statement of the control role waits for a lock, as a grant does for the fence's row.
func waiting(h *testDatabase) bool {
	return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE NOT l.granted AND a.usename = $1 AND a.datname = current_database())", pgtest.Control)
}

func mustContain(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v; want it to say %q", err, part)
		}
	}
}
