package proxy_test

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// stage is a database of its own behind a proxy, with the tables and functions
// that the safety cases write by, and an administrator's direct connection.
type stage struct {
	*bench
	t     *testing.T
	db    string
	admin *pgx.Conn
}

// gate holds what calls it until the test opens it; then the caller goes on to
// write, if it still may.
const stageSQL = `
create table t (id serial primary key, v text not null);
create table c (id int primary key, v text);
insert into c values (1, 'one');
create function gate() returns text language sql volatile as 'select ''stale'' from (select pg_advisory_lock_shared(42)) g';
create function wr(v text) returns text language sql volatile as 'insert into t (v) values (v) returning v';
create function wrb(v text) returns boolean language plpgsql volatile as 'begin perform wr(v); return true; end';
create domain wd as text check (wrb(value));
create view vw as select wr('stale') as v;
create function plus(a int, b int) returns int language plpgsql volatile as 'begin perform wr(''stale''); return 0; end';
create operator + (leftarg = int, rightarg = int, function = plus);
create type pair as (a int, b int);
create function to_int(p pair) returns int language plpgsql volatile as 'begin perform wr(''stale''); return 0; end';
create cast (pair as int) with function to_int(pair);
create function prepared() returns setof text language sql as 'select name from pg_prepared_statements';
create procedure late() language plpgsql as $$begin
  commit; perform pg_advisory_unlock_all(); perform gate(); insert into t (v) values ('stale'); end$$;
grant all on all tables in schema public to app;
grant all on all sequences in schema public to app`

func newStage(t *testing.T, pg *pgtest.Server) *stage {
	t.Helper()
	return stageOf(t, newBench(t, pg, nil))
}

// stageOf makes a stage behind that proxy.
func stageOf(t *testing.T, b *bench) *stage {
	t.Helper()
	s := &stage{bench: b, t: t, db: b.pg.Database(t)}
	s.admin = b.pg.Connect(t, pgtest.Superuser, s.db)
	s.exec(stageSQL)
	return s
}

// exec runs SQL as the administrator, past the proxy.
func (s *stage) exec(sql string) {
	s.t.Helper()
	if _, err := s.admin.Exec(s.t.Context(), sql); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// value asks the database for one number, past the proxy.
func (s *stage) value(sql string, args ...any) (n int) {
	s.t.Helper()
	if err := s.admin.QueryRow(s.t.Context(), sql, args...).Scan(&n); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// rows is how many rows of table t have the value v.
func (s *stage) rows(v string) int {
	s.t.Helper()
	return s.value("select count(*) from t where v = $1", v)
}

// ownRole makes, once, a role with the rights of app that no other test sets
// parameters of: roles belong to the whole server, which tests share. It has the
// name of the database.
func (s *stage) ownRole() string {
	s.t.Helper()
	if s.value("select count(*) from pg_roles where rolname = $1", s.db) == 0 {
		s.exec("create role " + s.db + " login in role " + pgtest.App)
	}
	return s.db
}

// connect opens a connection of a worker of resource r, as app unless more begins
// with another user.
func (s *stage) connect(worker string, more ...string) *wiretest.Conn {
	s.t.Helper()
	user := pgtest.App
	if len(more) > 1 && more[0] == "user" {
		user, more = more[1], more[2:]
	}
	params := append([]string{"user", user, "database", s.db, "fencepost.resource", "r", "fencepost.worker", worker}, more...)
	c, _ := wiretest.Connect(s.t, s.addr, params...)
	return c
}

// leads grants the worker an epoch, and returns a connection that knows it from
// its start.
func (s *stage) leads(worker string, more ...string) *wiretest.Conn {
	s.t.Helper()
	s.connect(worker)
	s.grantTo(worker)
	return s.connect(worker, more...)
}

// grantTo grants the worker an epoch. Nobody is told but its own candidacy.
func (s *stage) grantTo(worker string) {
	s.t.Helper()
	s.seat(s.db, "r", worker).Grant()
}

// succeed makes another worker lead. The candidacies before it know nothing.
func (s *stage) succeed() {
	s.t.Helper()
	worker := fmt.Sprintf("successor%d", s.desk.Next())
	s.connect(worker)
	s.grantTo(worker)
}

// waiting reports how many backends wait for a lock of that kind.
func (s *stage) waiting(kind string) int {
	return s.value("select count(*) from pg_locks join pg_stat_activity using (pid) where not granted and locktype = $1 and datname = current_database()", kind)
}

// pending is the reply to something that was sent, as it comes.
type pending struct {
	done chan struct{}
	all  []wiretest.Message // once done is closed
	err  error
}

// reply reads, beside the test, up to the n-th ReadyForQuery or the end of the
// connection.
func reply(c *wiretest.Conn, n int) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for n > 0 {
			m, err := c.Next()
			if err != nil {
				p.err = err
				return
			}
			p.all = append(p.all, m)
			if m.Type == 'Z' {
				n--
			}
		}
	}()
	return p
}

// wait returns the messages, and whether the connection has ended.
func (p *pending) wait() (all []wiretest.Message, ended bool) {
	<-p.done
	return p.all, errors.Is(p.err, io.EOF)
}

func (p *pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ask sends and reads up to the next ReadyForQuery, or the end.
func ask(c *wiretest.Conn, parts ...[]byte) (all []wiretest.Message, ended bool) {
	p := reply(c, 1)
	_ = c.SetWriteDeadline(time.Time{}) // that of an earlier Send may have passed
	_, err := c.Write(cat(parts...))
	all, ended = p.wait()
	return all, ended || err != nil
}

// mustPass sends, and fails the test unless it is answered without an error.
func mustPass(t *testing.T, c *wiretest.Conn, parts ...[]byte) []wiretest.Message {
	t.Helper()
	all, ended := ask(c, parts...)
	if ended || wiretest.ErrorOf(all) != "" {
		t.Fatalf("%q: got %v, ended %v", cat(parts...), all, ended)
	}
	return all
}

// mustFail sends, and fails the test unless it is answered by that SQLSTATE and
// the connection lives.
func mustFail(t *testing.T, c *wiretest.Conn, state string, parts ...[]byte) []wiretest.Message {
	t.Helper()
	all, ended := ask(c, parts...)
	if ended || wiretest.ErrorOf(all) != state {
		t.Fatalf("%q: got %v, ended %v; want %s", cat(parts...), all, ended, state)
	}
	return all
}

// mustEnd sends, and fails the test unless the answer is FATAL with that
// SQLSTATE and the end of the connection.
func mustEnd(t *testing.T, c *wiretest.Conn, state string, parts ...[]byte) map[byte]string {
	t.Helper()
	all, ended := ask(c, parts...)
	if !ended || len(all) == 0 {
		t.Fatalf("%q: got %v, ended %v; want FATAL %s and the end", cat(parts...), all, ended, state)
	}
	last := all[len(all)-1]
	if f := last.Fields(); last.Type != 'E' || f['C'] != state || f['V'] != "FATAL" || f['S'] != "FATAL" {
		t.Fatalf("%q: got %v; want FATAL %s", cat(parts...), all, state)
	}
	return last.Fields()
}

// own18 is a PostgreSQL 18 of the test's own.
func own18(t *testing.T) *pgtest.Server {
	t.Helper()
	return pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18)))
}

// checking reports whether this build checks at all.
func (s *stage) checking() bool { return fencing.Checking }

// stop freezes a process until resume is called, at the latest when the test
// ends.
func stop(t *testing.T, pid int) (resume func()) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatalf("stop process %d: %v", pid, err)
	}
	resume = sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	t.Cleanup(resume)
	return resume
}
