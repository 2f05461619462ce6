package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolVacuumMarksPages: VACUUM right behind a load marks the pages as
// visible to all, as it does without a note of the registry in front. Postgres
// keeps one place in the WAL for each 32 transactions, so that the note's commit
// has to be on disk for the load's to be believed. The server here flushes
// nothing by itself.
func TestProtocolVacuumMarksPages(t *testing.T) {
	t.Parallel()
	pg := pgtest.Start(t, pgtest.WithConfig(map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}))
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	c := fixture.LeaderConn(t, p, db)
	fixture.MustExec(t, c, "create table t (id int)")
	p.Candidacy(db, "r", "w").Fence().RefreshCatalog(t.Context())
	for name, vacuum := range map[string][]byte{"simple": Q("vacuum t"), "messages": Batch(Run("vacuum t")), "analyze too": Q("vacuum (analyze) t")} {
		unmarked := "all"
		for try := 0; try < 3 && unmarked != "0"; try++ { // the control role's own queries may be in the way
			fixture.MustExec(t, c, "insert into t select generate_series(1, 10000)")
			c.Send(vacuum)
			c.Until('Z')
			unmarked = fixture.FirstValue(t, c.Exec("select relpages - relallvisible from pg_class where relname = 't'"))
		}
		if unmarked != "0" {
			t.Errorf("%s: VACUUM has left %s pages unmarked", name, unmarked)
		}
	}
}

// TestProtocolAnalyzeHoldsOneTable: ANALYZE of several tables commits after each,
// and so waits for a table while it holds no lock on another; behind a check in
// its transaction it would hold them all.
func TestProtocolAnalyzeHoldsOneTable(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		c := fixture.LeaderConn(t, p, db)
		admin := p.PG.Connect(t, pgtest.Superuser, db)
		fixture.MustExec(t, c, "create table a (id int); create table b (id int)")
		for name, analyze := range map[string][]byte{"simple": Q("analyze a, b"), "messages": Batch(Run("analyze a, b"))} {
			tx, err := admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "lock table b in share mode"); err != nil {
				t.Fatal(err)
			}
			c.Send(analyze)
			var held int
			fixture.Eventually(t, name+": ANALYZE waits for the second table", func() bool {
				var waits bool
				err := tx.QueryRow(t.Context(), `select count(*) filter (where relation = 'a'::regclass), bool_or(not granted and relation = 'b'::regclass)
					from pg_locks where mode = 'ShareUpdateExclusiveLock' and database = (select oid from pg_database where datname = current_database())`).Scan(&held, &waits)
				return err == nil && waits
			})
			if held != 0 {
				t.Errorf("%s: ANALYZE holds the first table while it waits for the second", name)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if all := c.Until('Z'); wiretest.ErrorOf(all) != "" {
				t.Errorf("%s: %v", name, all)
			}
		}
	})
}
