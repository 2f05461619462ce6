package system

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestAServerThatLetsNoOneLogIn begins while Postgres shuts down: it answers, and refuses each login
// (57P03). No worker has connected.
func TestAServerThatLetsNoOneLogIn(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	h := newCluster(t, "postgres", onServer(s))
	last := s.Connect(t, pgtest.Superuser, "postgres") // for which a smart shutdown waits
	if err := syscall.Kill(s.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "Postgres to refuse logins", func() bool {
		conn, err := pgx.Connect(t.Context(), s.DSN(pgtest.Superuser, "postgres"))
		if err == nil {
			_ = conn.Close(t.Context())
		}
		return stateOf(err) == "57P03"
	})
	p := h.proxy()
	f := awaitFault(t, p, faults.Upstream, "Postgres is starting, stopping or recovering")
	if f.Where != faults.InControl || !strings.Contains(f.Problem, "57P03") {
		t.Errorf("the fault is %+v", f)
	}
	status, body := p.Get(t, "/readyz")
	if status != http.StatusServiceUnavailable || strings.Contains(body, `"upstream": "ok"`) {
		t.Errorf("/readyz where nobody can log in: %d %s", status, body)
	}
	_ = last.Close(t.Context())
	s.Restart(t)
	awaitNoFault(t, p, faults.Upstream)
	awaitOK(t, p, "/readyz")
}

// TestASingleServerThatIsAStandby: the proxy says so before a worker connects, and beside the state of the
// resource for which one waits, until the server is promoted.
func TestASingleServerThatIsAStandby(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t)))
	h.join(h.proxy(), "earlier", "campaign", "wait").leave() // the standby has the fence
	standby := h.pg.Standby(t)
	p := h.proxy("UPSTREAM_ADDRESS=" + standby.Addr())
	if f := awaitFault(t, p, faults.Upstream, "upstream.address name the primary"); f.Where != faults.InPrimary || !strings.Contains(f.Problem, "standby") {
		t.Errorf("the fault is %+v", f)
	}
	awaitOK(t, p, "/readyz")
	w := h.join(p, "w")
	process.Eventually(t, process.Patience, "the reason beside the state", func() bool {
		_, out := h.command("status", "--admin", p.Admin)
		return strings.Contains(out, "is a standby")
	})
	standby.Promote(t)
	awaitNoFault(t, p, faults.Upstream)
	process.Eventually(t, process.Patience, "w to lead", func() bool { return w.exec("INSERT INTO work VALUES ('w')") == nil })
}

// TestAPoolerIsNotPostgres: behind a connection pooler, backends cannot be told apart by their process ids, and each
// transaction may have another one, so workers and those who may only read are refused, and the operator is told why.
func TestAPoolerIsNotPostgres(t *testing.T) {
	t.Parallel()
	const ignored = "ignore_startup_parameters = fencepost.role, fencepost.epoch, fencepost.resource, fencepost.worker, search_path, " +
		"default_transaction_isolation, default_transaction_read_only, default_transaction_deferrable, statement_timeout, lock_timeout, " +
		"idle_in_transaction_session_timeout, idle_session_timeout, tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count, " +
		"extra_float_digits"
	for name, settings := range map[string][]string{
		"session":                         nil,
		"transaction, parameters dropped": {ignored, "pool_mode = transaction", "default_pool_size = 1"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", onServer(pgtest.SharedMajor(t, 18))) // which needs no catalog for those who only read
			pooler := pgtest.Pooler(t, h.pg, settings...)
			p := h.proxy("UPSTREAM_ADDRESS="+pooler, "CONTROL_PROBE_DATABASE="+h.db)
			_, err := h.tryJoin(process.Patience, p, "a")
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != fencing.StateNoFence ||
				!strings.Contains(refused.Message, "connection pooler") || !strings.Contains(refused.Hint, "upstream.address") {
				t.Errorf("the worker is told %v; want ZF004 that names the pooler", err)
			}
			if _, err := pgx.Connect(t.Context(), "postgres://"+pgtest.App+"@"+p.Address+"/"+h.db); !errors.As(err, &refused) || refused.Code != fencing.StateNoFence {
				t.Errorf("a connection without a resource is told %v; want ZF004", err)
			}
			direct, err := pgx.Connect(t.Context(), "postgres://"+pgtest.App+"@"+pooler+"/"+h.db+"?default_query_exec_mode=simple_protocol")
			if err != nil {
				t.Fatal(err)
			}
			var readOnly string
			if err := direct.QueryRow(t.Context(), "SHOW default_transaction_read_only").Scan(&readOnly); err != nil || readOnly != "off" {
				t.Errorf("the next client of the pooler gets a backend whose transactions are read-only: %s, %v", readOnly, err)
			}
			if err := direct.Close(t.Context()); err != nil {
				t.Error(err)
			}
			fault := awaitFault(t, p, faults.Upstream, "upstream.address")
			if !strings.Contains(fault.Problem, "connection pooler") {
				t.Errorf("the fault is %+v", fault)
			}
		})
	}
}

// TestAnOldServerIsRefused: workers, connections without a resource and commands are refused by the version that
// the server says, and the operator is told.
func TestAnOldServerIsRefused(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	major := pgtest.Ask[string](t, h.pg, h.db, "SELECT current_setting('server_version_num')::int / 10000 || '.'")
	old := fixture.NewRelay(t, "tcp", h.pg.Addr(), func() fixture.Passing {
		return fixture.Passing{ToClient: func(piece []byte) []byte {
			return bytes.ReplaceAll(piece, []byte("server_version\x00"+major), []byte("server_version\x0014."))
		}}
	}).Addr
	p := h.proxy("UPSTREAM_ADDRESS="+old, "CONTROL_PROBE_DATABASE="+h.db)
	fault := awaitFault(t, p, faults.Upstream, "Upgrade the server")
	if fault.Where != faults.InControl || !strings.Contains(fault.Problem, "PostgreSQL 14") {
		t.Errorf("the fault is %+v", fault)
	}
	_, err := h.tryJoin(process.Patience, p, "a")
	plain, plainErr := pgx.Connect(t.Context(), "postgres://"+pgtest.App+"@"+p.Address+"/"+h.db)
	if plainErr == nil {
		_ = plain.Close(t.Context())
	}
	for who, err := range map[string]error{"the worker": err, "a connection without a resource": plainErr} {
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != fencing.StateNoFence || !strings.Contains(refused.Message, "PostgreSQL 14") || !strings.Contains(refused.Hint, "Upgrade the server") {
			t.Errorf("%s is told %v; want ZF004 that names the version", who, err)
		}
	}
	for _, command := range [][]string{{"migrate"}, {"status"}, {"evict", "billing"}} {
		code, out := h.command(append(command, "--dsn", "postgres://"+pgtest.Superuser+"@"+old+"/"+h.db+"?sslmode=disable")...)
		if code == 0 || !strings.Contains(out, "PostgreSQL 14") || !strings.Contains(out, "Upgrade the server") {
			t.Errorf("%v: code %d: %s", command, code, out)
		}
	}
}

// TestADatabaseWhoseNameIsNoUTF8 checks that a refused write there does not crash the
// proxy.
func TestADatabaseWhoseNameIsNoUTF8(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	victim := h.join(p, "a", "campaign", "wait")
	h.pg.Exec(t, pgtest.Superuser, h.db, "create database "+h.db+"_l encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
	a, _ := wiretest.Connect(t, h.pg.Addr(), "user", pgtest.Superuser, "database", h.db+"_l", "client_encoding", "latin1")
	a.Exec("create database \"" + h.db + "_\xe9\" encoding 'latin1' lc_collate 'C' lc_ctype 'C' template template0")
	c, _ := wiretest.Connect(t, p.Address, "user", pgtest.App, "database", h.db+"_\xe9")
	c.Send(wiretest.Query("create temp table t (a int)"))
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "ZF002" {
		t.Errorf("a write without a resource: %v", all)
	}
	if err := victim.exec("select 1"); err != nil {
		t.Errorf("another client: %v; the process has ended: %v", err, p.Ended())
	}
}

// TestAnAliasOfADatabaseHasItsLease: Postgres cuts names at 63 bytes, so a longer name
// is the same database, and takes no lease from a leader that lives.
func TestAnAliasOfADatabaseHasItsLease(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "consul")
	long := h.db + strings.Repeat("n", 63-len(h.db))
	h.pg.Exec(t, pgtest.Superuser, "postgres", "create database "+long+" template "+h.db)
	t.Cleanup(func() { h.pg.Exec(t, pgtest.Superuser, "postgres", "drop database "+long+" with (force)") })
	h.db = long
	p := h.proxy()
	leader := h.join(p, "a", "campaign", "wait")
	leader.must("insert into work values ('a')")
	alias := *h
	alias.db += "more"
	other := alias.join(p, "b")
	if err := other.exec("insert into work values ('b')"); stateOf(err) != fencing.StateNotLeader {
		t.Errorf("the other worker's write: %v; want ZF002", err)
	}
	leader.must("insert into work values ('a again')")
	if got := h.granted(); got != "a" {
		t.Errorf("granted to %s; want to a alone", got)
	}
}
