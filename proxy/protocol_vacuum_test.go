package proxy_test

import (
	"testing"

	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestProtocolVacuumMarksPages: VACUUM right behind a load marks the pages as
// visible to all, as it does without a note of the registry in front. Postgres
// keeps one place in the WAL for each 32 transactions, so that the note's commit
// has to be on disk for the load's to be believed. The server here flushes
// nothing by itself.
func TestProtocolVacuumMarksPages(t *testing.T) {
	t.Parallel()
	pg := pgtest.Start(t, pgtest.WithConfig(map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off"}))
	b, db := newBench(t, pg, nil), pg.Database(t)
	c := leaderConn(t, b, db)
	mustExec(t, c, "create table t (id int)")
	b.seat(db, "r", "w").Fence().RefreshCatalogue(t.Context())
	for name, vacuum := range map[string][]byte{"simple": q("vacuum t"), "messages": cat(run("vacuum t"), sync_()), "analyze too": q("vacuum (analyze) t")} {
		unmarked := "all"
		for try := 0; try < 3 && unmarked != "0"; try++ { // the control role's own queries may be in the way
			mustExec(t, c, "insert into t select generate_series(1, 10000)")
			c.Send(vacuum)
			c.Until('Z')
			unmarked = value(t, c.Exec("select relpages - relallvisible from pg_class where relname = 't'"))
		}
		if unmarked != "0" {
			t.Errorf("%s: VACUUM has left %s pages unmarked", name, unmarked)
		}
	}
}
