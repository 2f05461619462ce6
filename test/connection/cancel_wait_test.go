package connection

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// canceled checks the answer to a statement that the client has canceled, while Fencepost was busy
// for it in some way: it is that of Postgres.
func canceled(t *testing.T, what string, all []wiretest.Message) {
	t.Helper()
	var f map[byte]string
	for _, m := range all {
		if m.Type == 'E' {
			f = m.Fields()
		}
	}
	if f['C'] != "57014" || f['V'] != "ERROR" || f['M'] != "canceling statement due to user request" || f['H'] != "" || f['W'] != "" || f['P'] != "" {
		t.Errorf("%s: %v", what, all)
	}
}

// TestCancelWhileTheRegistryIsAsked: the first statement of a leader waits in the proxy until its backend is registered,
// and the server knows nothing of it yet.
func TestCancelWhileTheRegistryIsAsked(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil)
	db := p.PG.Database(t)
	fixture.MustExec(t, fixture.LeaderConn(t, p, db), "create table t (id int)")
	admin, watch := p.PG.Connect(t, pgtest.Superuser, db), p.PG.Connect(t, pgtest.Superuser, db)
	const do = "do $$ begin insert into t values (1); end $$"
	for name, sends := range map[string][]byte{"simple": Q(do), "extended": Batch(Run(do))} {
		c, key := keyed(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", name)
		p.Candidacy(db, "r", name).Grant()
		fixture.MustExec(t, c, "show fencepost.role") // which tells the client
		unlock := locked(t, admin, "fencepost.running")
		c.Send(sends)
		awaitEntry(t, watch, admin)
		cancelWith(t, p.Addr, key)
		unlock()
		canceled(t, name, c.Until('Z'))
		if got := fixture.FirstValue(t, c.Exec("select count(*) from t")); got != "0" {
			t.Errorf("%s: the canceled statement has written %s rows", name, got)
		}
		fixture.MustExec(t, c, "begin; "+do)
		if got := fixture.FirstValue(t, c.Exec("select count(*) from t")); got != "1" {
			t.Errorf("%s: %s rows, want that of the statement that was not canceled", name, got)
		}
		fixture.MustExec(t, c, "rollback")
		fixture.MustExec(t, c, "show fencepost.role") // the request is for no later statement
	}
	if all := p.Audited(t, db); len(all) > 0 {
		t.Errorf("a cancel was audited as a refusal: %+v", all)
	}
}

// locked locks a table until unlock is called.
func locked(t *testing.T, admin *pgx.Conn, table string) (unlock func()) {
	t.Helper()
	for _, sql := range []string{"begin", "lock table " + table} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		if _, err := admin.Exec(t.Context(), "rollback"); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitEntry waits until the registry has been asked since admin locked it. The control connection waits for the lock
// for a moment only, again and again for 5 s, so that what it has asked last is seen more surely than that it waits.
func awaitEntry(t *testing.T, watch, admin *pgx.Conn) {
	t.Helper()
	fixture.AwaitBackend(t, watch, fmt.Sprintf("query like '%%fencepost.enter%%' and query_start > (select xact_start from pg_stat_activity where pid = %d)",
		admin.PgConn().PID()))
}

// TestCancelWhileTheLeaseIsConfirmed: the write waits until it is known whether the worker still
// leads, and ends at once when it is canceled.
func TestCancelWhileTheLeaseIsConfirmed(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil)
	db := p.PG.Database(t)
	fixture.LeaderConn(t, p, db).Close()
	c, key := keyed(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w")
	fixture.MustExec(t, c, "create table t (id int)")
	w := p.Candidacy(db, "r", "w")
	confirmed := w.Status()
	waits := make(chan struct{})
	w.OnAwaitConfirmed(func(ctx context.Context) {
		waits <- struct{}{}
		<-ctx.Done()
	})
	w.SetStatus(&fencing.Status{Role: fencing.Follower, Epoch: confirmed.Epoch, Lapsed: true, Holder: confirmed.Holder})
	for name, sends := range map[string][]byte{"simple": Q("insert into t values (1)"), "extended": Batch(Run("insert into t values (1)"))} {
		c.Send(sends)
		<-waits
		cancelWith(t, p.Addr, key)
		canceled(t, name, c.Until('Z'))
	}
	w.SetStatus(confirmed)
	fixture.MustExec(t, c, "insert into t values (2)")
	if got := fixture.FirstValue(t, c.Exec("select string_agg(id::text, ',') from t")); got != "2" {
		t.Errorf("rows %s, want only that of the statement that was not canceled", got)
	}
}
