package store_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence/fencetest"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/upstream"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// open opens a database as the control role.
func open(t *testing.T, s *pgtest.Server, db string, change ...func(*store.Config)) *store.Store {
	t.Helper()
	cfg := store.Config{Address: s.Addr(), Database: db, User: pgtest.Control}
	for _, c := range change {
		c(&cfg)
	}
	st, err := store.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}

func openAs(t *testing.T, s *pgtest.Server, db, user string, version int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), fixture.Patience)
	defer cancel()
	st, err := store.Open(ctx, store.Config{Address: s.Addr(), Database: db, User: user, SchemaVersion: version})
	if err == nil {
		st.Close()
	}
	return err
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	migrated, empty := s.Database(t), s.EmptyDatabase(t)
	s.Exec(t, pgtest.Superuser, "postgres", "CREATE ROLE weak LOGIN IN ROLE "+pgtest.Control, "REVOKE "+pgtest.Control+" FROM weak",
		"GRANT pg_read_all_stats TO weak")
	for _, c := range []struct {
		name, db, user string
		version        int
		message, hint  string
	}{
		{"no schema", empty, pgtest.Control, 0, "missing", "fencepost migrate --dsn postgres://fencepost@" + s.Addr() + "/" + empty},
		{"an older schema", migrated, pgtest.Control, 999, "version 999 is needed", "fencepost migrate"},
		{"another role", migrated, pgtest.App, 0, "belongs to role " + pgtest.Control, `Connect as "` + pgtest.Control + `"`},
	} {
		err := openAs(t, s, c.db, c.user, c.version)
		var refusal *fencing.Refusal
		if !errors.As(err, &refusal) || refusal.SQLState != fencing.StateNoFence {
			t.Errorf("%s: %v; want ZF004", c.name, err)
			continue
		}
		fencetest.MustContain(t, errors.New(refusal.Message), c.message)
		fencetest.MustContain(t, errors.New(refusal.Hint), c.hint)
	}
	s.Exec(t, pgtest.Superuser, "postgres", "CREATE ROLE maker", "GRANT maker TO "+pgtest.Control, "GRANT CREATE ON DATABASE "+empty+" TO maker")
	s.Exec(t, pgtest.Superuser, empty, "CREATE SCHEMA fencepost AUTHORIZATION maker")
	fencetest.MustContain(t, openAs(t, s, empty, pgtest.Control, 0), "has a schema that is not Fencepost's", `belongs to role "maker"`)
	if err := openAs(t, s, migrated, pgtest.Control, 1); err != nil {
		t.Errorf("the control role: %v", err)
	}
	for _, right := range []string{"pg_signal_backend", "pg_read_all_stats"} {
		s.Exec(t, pgtest.Superuser, "postgres", "REVOKE "+right+" FROM "+pgtest.Control)
		err := openAs(t, s, migrated, pgtest.Control, 0)
		var refusal *fencing.Refusal
		if !errors.As(err, &refusal) || refusal.SQLState != fencing.StateNoFence {
			t.Errorf("without %s: %v; want ZF004", right, err)
		} else {
			fencetest.MustContain(t, errors.New(refusal.Message+refusal.Hint), "lacks "+right, "GRANT "+right+` TO "fencepost"`)
		}
		s.Exec(t, pgtest.Superuser, "postgres", "GRANT "+right+" TO "+pgtest.Control)
	}
	s.Exec(t, pgtest.Superuser, migrated, `DO $$ BEGIN EXECUTE (SELECT pg_catalog.string_agg(pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM public', p.oid::regprocedure), ';')
		FROM pg_proc p WHERE p.proname = 'pg_logical_emit_message'); END $$`)
	fencetest.MustContain(t, openAs(t, s, migrated, pgtest.Control, 0), "lacks EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message(")
	if err := openAs(t, s, "nowhere", pgtest.Control, 0); fencetest.StateOf(err) != "3D000" {
		t.Errorf("a database that does not exist: %v", err)
	}
}

// TestEndedConnectionsAreNotNoticed ends every connection of the control role, as an
// operator may. The next caller must be served on a new one.
func TestEndedConnectionsAreNotNoticed(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	st, admin := open(t, s, db), s.Connect(t, pgtest.Superuser, db)
	for range 2 {
		if _, err := st.WaitFor(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		var ended int
		if err := admin.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
			WHERE datname = current_database() AND usename = $1`, pgtest.Control).Scan(&ended); err != nil {
			t.Fatal(err)
		}
		if ended == 0 {
			t.Error("there was no connection to end")
		}
		time.Sleep(store.TrustedIdle) // until then the connection is used without a ping
	}
}

// openCuttable returns a store whose connections can all be cut, without either side noticing.
func openCuttable(t *testing.T) (far *store.Store, cut func()) {
	t.Helper()
	s := pgtest.Shared(t)
	var mu sync.Mutex
	var all []*atomic.Bool
	relay := fixture.NewRelay(t, "tcp", s.Addr(), func() fixture.Passing {
		dead := new(atomic.Bool)
		mu.Lock()
		all = append(all, dead)
		mu.Unlock()
		pass := func(b []byte) []byte {
			if dead.Load() {
				return nil
			}
			return b
		}
		return fixture.Passing{ToServer: pass, ToClient: pass}
	})
	far = open(t, s, s.Database(t), func(c *store.Config) { c.Address = relay.Addr })
	return far, func() {
		mu.Lock()
		defer mu.Unlock()
		for _, dead := range all {
			dead.Store(true)
		}
	}
}

// fill opens as many connections of a pool as there may be.
func fill(t *testing.T, pool *pgxpool.Pool) (all []*pgxpool.Conn) {
	t.Helper()
	for range store.PoolSize {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	return all
}

// TestOneDeadConnectionCondemnsAll: what finds that a connection is dead need not find that out of the others, one after
// the other.
func TestOneDeadConnectionCondemnsAll(t *testing.T) {
	t.Parallel()
	far, cut := openCuttable(t)
	another, err := far.NewPool(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	use := func() {
		t.Helper()
		if _, err := another.Exec(t.Context(), "SELECT"); err != nil {
			t.Fatal(err)
		}
	}
	use()
	for _, conn := range fill(t, far.Pool()) {
		conn.Release()
	}
	cut()
	time.Sleep(store.TrustedIdle)
	use()
	fixture.Eventually(t, "the idle connections of the other pool are closed", func() bool { return far.Pool().Stat().TotalConns() == 0 })
}

// TestADeadConnectionLeavesItsPool although no one answers that its statement is cancelled.
func TestADeadConnectionLeavesItsPool(t *testing.T) {
	t.Parallel()
	far, cut := openCuttable(t)
	all := fill(t, far.Pool())
	cut()
	var statements sync.WaitGroup
	for _, conn := range all {
		statements.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := conn.Exec(ctx, "SELECT"); err == nil {
				t.Error("a statement on a dead connection was answered")
			}
			conn.Release()
		})
	}
	statements.Wait()
	if _, err := far.Pool().Exec(t.Context(), "SELECT"); err != nil {
		t.Fatal(err)
	}
}

// TestAProxyIsGoneWhenItsConnectionsAre, and no one but a control role can make it look alive.
func TestAProxyIsGoneWhenItsConnectionsAre(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	called := func(id string) func(*store.Config) { return func(c *store.Config) { c.PresenceID = id } }
	one, two := open(t, s, db, called("one-"+db)), open(t, s, db, called("two-"+db))
	gone := func(id string) bool {
		t.Helper()
		g, err := two.Gone(t.Context(), id, "")
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if gone(one.PresenceID()) || gone(two.PresenceID()) {
		t.Error("a proxy that is there is said to be gone")
	}
	cfg, err := pgx.ParseConfig(s.DSN(pgtest.App, db))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "fencepost " + one.PresenceID()
	worker, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close(t.Context())
	one.Close()
	for deadline := time.Now().Add(fixture.Patience); !gone(one.PresenceID()); {
		if time.Now().After(deadline) {
			t.Fatal("a proxy that is gone is said to be there")
		}
	}
}

// TestWhatCountsAsSilence: leases are given back for it, so an error that says nothing of the network is none.
func TestWhatCountsAsSilence(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"no error", nil, false},
		{"SQLSTATE", &pgconn.PgError{Code: "53300"}, false},
		{"a refusal", &store.Unusable{Refusal: &fencing.Refusal{SQLState: "57P03"}}, false},
		{"the server's certificate", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, false},
		{"the client's certificate", &net.OpError{Op: "remote error", Err: tls.AlertError(42)}, false},
		{"no file descriptor", dial(os.NewSyscallError("socket", syscall.EMFILE)), false},
		{"no such host", &net.DNSError{Err: "no such host", IsNotFound: true}, false},
		{"no such host, says the dialer", dial(&net.DNSError{Err: "no such host", IsNotFound: true}), false},
		{"name servers that are silent", &net.DNSError{Err: "i/o timeout", IsTimeout: true}, true},
		{"name servers that cannot ask others", &net.DNSError{Err: "server misbehaving", IsTemporary: true}, true},
		{"a faulty TLS record", &net.OpError{Op: "local error", Err: tls.AlertError(20)}, false},
		{"no route", dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), true},
		{"a connection that breaks", io.ErrUnexpectedEOF, true},
		{"a load balancer without servers", io.EOF, true},
		{"the time is over", context.DeadlineExceeded, true},
		{"no host is the primary", &upstream.NoPrimaryError{}, true},
	} {
		if got := store.Silent(fmt.Errorf("read the orders: %w", c.err)); got != c.want {
			t.Errorf("%s: silence is %t, want %t", c.name, got, c.want)
		}
	}
}

// TestAFaultOfThisProcess is not one of Postgres.
func TestAFaultOfThisProcess(t *testing.T) {
	t.Parallel()
	err := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	if f := store.FaultOf(fmt.Errorf("open the fence: %w", err)); f.Remedy != faults.MoreDescriptors {
		t.Errorf("what to do is %q", f.Remedy)
	}
}

// TestAnswersWhoeverWaits: a lock on a catalog holds up every login, and the reading of the orders, while sessions that
// exist continue. That is an answer. A frozen server gives none, and nor does a load balancer that ends TLS and has no server.
func TestAnswersWhoeverWaits(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	db := s.Database(t)
	leads := store.Server{Address: s.Addr()}
	st, err := store.Open(t.Context(), store.Config{Database: db, User: pgtest.Control, Primary: func(context.Context) (store.Server, error) { return leads, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	answers := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return st.Answers(ctx, context.DeadlineExceeded)
	}
	must := func(what string) { // on a busy machine, an attempt may be late
		t.Helper()
		if !answers() && !answers() {
			t.Errorf("%s does not answer", what)
		}
	}
	if tx, err := s.Connect(t, pgtest.Superuser, db).Begin(t.Context()); err != nil {
		t.Fatal(err)
	} else if _, err := tx.Exec(t.Context(), "LOCK TABLE pg_catalog.pg_authid, pg_catalog.pg_database"); err != nil {
		t.Fatal(err)
	}
	must("a server at which all logins wait")
	s.Freeze(t)
	if answers() {
		t.Error("a frozen server answers")
	}
	s.Thaw(t)
	must("the server that was frozen")
	leads = store.Server{Address: speaksTLS(t), TLS: &tls.Config{InsecureSkipVerify: true}}
	if answers() {
		t.Error("a load balancer without a server answers")
	}
}

// speaksTLS returns the address of what says to every connection that it speaks TLS, and then closes it.
func speaksTLS(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := io.ReadFull(conn, make([]byte, 8)); err == nil {
				_, _ = conn.Write([]byte("S"))
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		served.Wait()
	})
	return l.Addr().String()
}
