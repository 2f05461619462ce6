// Package fencetest gives tests a database with a fence, and workers that use it past the proxy.
package fencetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// Unfenced runs the safety tests with registrations switched off. Each of them must then
// fail.
var Unfenced = os.Getenv("FENCEPOST_TEST_UNFENCED") == "1"

// Resource is the resource of a Database.
const Resource = "billing"

// Database is one database with a fence, and the helpers to use it.
type Database struct {
	T      *testing.T
	Server *pgtest.Server
	DB     string
	Fences *fence.Database
	Fence  *fence.Fence // of Resource
	Index  int64        // of the last award
}

// New returns a new database.
func New(t *testing.T, s *pgtest.Server, change ...func(*fence.Config)) *Database {
	t.Helper()
	h := &Database{T: t, Server: s, DB: s.Database(t)}
	s.Exec(t, pgtest.Control, h.DB, "SELECT fencepost.admit('"+pgtest.App+"')") // see Claim
	return h.Connect(change...)
}

// Connect opens the fences, and the fence of Resource, as a proxy does.
func (h *Database) Connect(change ...func(*fence.Config)) *Database {
	h.T.Helper()
	h.Fences = h.Open(change...)
	h.Fence = h.NewFence(h.Fences)
	return h
}

// Open opens the fences once more, as another proxy would.
func (h *Database) Open(change ...func(*fence.Config)) *fence.Database {
	h.T.Helper()
	cfg := fence.Config{Config: store.Config{Address: h.Server.Addr(), Database: h.DB, User: pgtest.Control}, Grace: 100 * time.Millisecond, Patience: 10 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	fences := fixture.OpenStore(h.T, cfg)
	h.T.Cleanup(fences.Close)
	return fences
}

// NewFence opens the fence of Resource.
func (h *Database) NewFence(fences *fence.Database) *fence.Fence {
	h.T.Helper()
	f := fixture.Fence(h.T, fences, Resource)
	h.Number(f, "instance-1")
	return f
}

// Number gives an instance of the lease service its number, as a proxy does before it
// asks for a lease.
func (h *Database) Number(f *fence.Fence, marker string) {
	h.T.Helper()
	if err := f.Number(h.Ctx(), "test", marker); err != nil {
		h.T.Fatal(err)
	}
}

// Copy opens a copy of the database in its current state, as a restored backup would be.
func (h *Database) Copy() *Database {
	h.T.Helper()
	h.Fences.Close()
	old := &Database{T: h.T, Server: h.Server, DB: h.DB + "_restored", Index: h.Index}
	h.Server.Exec(h.T, pgtest.Superuser, "postgres",
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", old.DB, h.DB), fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", old.DB, pgtest.Control))
	h.T.Cleanup(func() { h.Server.Exec(h.T, pgtest.Superuser, "postgres", "DROP DATABASE "+old.DB+" WITH (FORCE)") })
	h.Connect()
	return old.Connect()
}

// Ctx returns a context that bounds one step of a test.
func (h *Database) Ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), fixture.Patience)
	h.T.Cleanup(cancel)
	return ctx
}

// Award returns the next award, to a candidacy of that name.
func (h *Database) Award(name string) fencing.Award {
	h.Index++
	return fencing.Award{Resource: Resource, Worker: "worker-" + name, Incarnation: "incarnation-" + name,
		Source: "test", InstanceID: "instance-1", Index: h.Index}
}

// AwardOf returns the next award, for another resource.
func (h *Database) AwardOf(f *fence.Fence, name string) fencing.Award {
	a := h.Award(name)
	a.Resource = f.Resource()
	return a
}

// Grant grants the next award, which must succeed.
func (h *Database) Grant(name string) fencing.Term {
	h.T.Helper()
	a := h.Award(name)
	epoch, err := h.Fence.Grant(h.Ctx(), a)
	if err != nil {
		h.T.Fatalf("grant to %s: %v", name, err)
	}
	return fencing.Term{Award: a, Epoch: epoch}
}

// Enter registers the worker's backend, as the proxy does.
func (h *Database) Enter(w *Worker) error {
	if Unfenced {
		return nil
	}
	_, err := h.Fence.RegisterBackend(h.Ctx(), w.Request())
	return err
}

// MustEnter is Enter for a registration that must succeed.
func (h *Database) MustEnter(w *Worker) fencing.Entry {
	h.T.Helper()
	note, err := h.Fence.RegisterBackend(h.Ctx(), w.Request())
	if err != nil {
		h.T.Fatal(err)
	}
	return note
}

// Waiting reports whether a statement of the control role waits for a lock, as a grant does for the fence's row.
func (h *Database) Waiting() bool {
	return Ask[bool](h, "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE NOT l.granted AND a.usename = $1 AND a.datname = current_database())", pgtest.Control)
}

// Ask reads one value as the superuser.
func Ask[T any](h *Database, sql string, args ...any) T {
	h.T.Helper()
	return pgtest.Ask[T](h.T, h.Server, h.DB, sql, args...)
}

// Worker is one connection of a worker.
type Worker struct {
	*pgx.Conn
	Fence   *fence.Fence
	Term    fencing.Term
	started string // when its server was started; set by Request
	seen    string // a time at which it had its backend
}

// Worker connects a worker.
func (h *Database) Worker(term fencing.Term) *Worker {
	h.T.Helper()
	return &Worker{Conn: h.Server.Connect(h.T, pgtest.App, h.DB), Fence: h.Fence, Term: term}
}

// Request returns the request that registers the worker's backend. The worker's epoch has
// been announced to it. A backend that has ended cannot be registered.
func (w *Worker) Request() fencing.RegisterRequest {
	if w.started == "" {
		ctx, cancel := context.WithTimeout(context.Background(), fixture.Patience)
		defer cancel()
		if err := w.QueryRow(ctx, "SELECT encode(timestamptz_send(pg_postmaster_start_time()), 'hex'), encode(timestamptz_send(clock_timestamp()), 'hex')").Scan(&w.started, &w.seen); err != nil {
			w.started = err.Error()
		}
	}
	return fencing.RegisterRequest{PID: w.PgConn().PID(), Started: w.started, Seen: w.seen, Worker: w.Term.Worker, Incarnation: w.Term.Incarnation, Announced: w.Term.Epoch, Held: w.Term.Epoch}
}

// Check finds out whether the worker's backend may be registered, with the worker's epoch announced to it.
func (w *Worker) Check(ctx context.Context) error {
	return w.CheckAs(ctx, w.Term.Epoch, w.Term.Epoch)
}

// CheckAs is Check with these epochs.
func (w *Worker) CheckAs(ctx context.Context, announced, held fencing.Epoch) error {
	if Unfenced {
		return nil
	}
	entry := w.Request()
	entry.Announced, entry.Held = announced, held
	note, err := w.Fence.RegisterBackend(ctx, entry)
	if err == nil {
		err = w.Fence.UnregisterBackend(ctx, note)
	}
	return err
}

// Claim starts a transaction that a grant waits for: it claims the worker's epoch past the proxy.
func (w *Worker) Claim(ctx context.Context, t testing.TB, isolation pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := w.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation, AccessMode: pgx.ReadWrite})
	if err != nil {
		t.Fatal(err)
	}
	if Unfenced {
		return tx
	}
	if _, err := tx.Exec(ctx, "SELECT fencepost.claim($1, $2)", w.Term.Resource, int64(w.Term.Epoch)); err != nil {
		t.Fatalf("claim epoch %d: %v", w.Term.Epoch, err)
	}
	return tx
}

// StateOf returns the SQLSTATE of a refusal or of a server error.
func StateOf(err error) string {
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

// HintOf returns the hint of a refusal, "" if err is none.
func HintOf(err error) string {
	var refusal *fencing.Refusal
	if errors.As(err, &refusal) {
		return refusal.Hint
	}
	return ""
}

// Detail is the DETAIL of a refusal.
type Detail struct {
	Resource      string        `json:"resource"`
	Worker        string        `json:"worker"`
	Incarnation   string        `json:"incarnation"`
	Epoch         fencing.Epoch `json:"epoch"`
	CurrentEpoch  fencing.Epoch `json:"current_epoch"`
	CurrentWorker string        `json:"current_worker"`
}

// DetailOf returns the DETAIL of a refusal, which must have a hint.
func DetailOf(t testing.TB, err error) Detail {
	t.Helper()
	var r *fencing.Refusal
	if !errors.As(err, &r) {
		t.Fatalf("not a refusal: %v", err)
	}
	var d Detail
	if err := json.Unmarshal([]byte(r.Detail), &d); err != nil || strings.Contains(r.Detail, "\n") {
		t.Errorf("DETAIL %q is not one line of JSON: %v", r.Detail, err)
	}
	if r.Hint == "" {
		t.Errorf("no hint with %s", r.Message)
	}
	return d
}

// MustContain fails the test unless the error says all of this.
func MustContain(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("the error is %v; want it to say %q", err, part)
		}
	}
}
