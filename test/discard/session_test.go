package discard

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// staleSession is what a session sends while it leads, and, once it was superseded and its
// proxy does not know, piece by piece, and how each piece is answered.
type staleSession struct {
	name   string
	before []byte
	pieces [][]byte
	want   []string // "": an error ZF001, with a warning or not
	since  int
}

const (
	insert = "insert into t (v) values ('stale')"
	warned = "WARNING:ZF001 "
	told   = " role=superseded ZI"
)

func ends(more ...[]byte) []byte { return append(cat(more...), sync_()...) }

var sessions = []staleSession{
	{name: "insert", pieces: [][]byte{q(insert), q(insert)}, want: []string{warned + "INSERT 0 0" + told, warned + "INSERT 0 0 ZI"}},
	{name: "update", pieces: [][]byte{q("update t set v = 'stale'")}, want: []string{warned + "UPDATE 0" + told}},
	{name: "delete that cascades", pieces: [][]byte{q("delete from c;")}, want: []string{warned + "DELETE 0" + told}},
	{name: "merge", since: 15, pieces: [][]byte{q("merge into t using c on t.id = c.id when matched then delete")}, want: []string{warned + "MERGE 0" + told}},
	{name: "with and returning", pieces: [][]byte{q("with x as (insert into c values (7) returning id) insert into t (v) select id from x returning id, v")},
		want: []string{warned + "T INSERT 0 0" + told}},
	{name: "in a block", pieces: [][]byte{q("begin"), q(insert), q("select v from t"), q("update t set v = 'stale' returning id"), q("commit")},
		want: []string{"BEGIN ZT", warned + "INSERT 0 0 role=superseded ZT", "T D D SELECT 2 ZT", "T UPDATE 0 ZT", "COMMIT ZI"}},
	{name: "savepoints", pieces: [][]byte{q("begin"), q("savepoint a"), q(insert), q("release a"), q(insert), q("savepoint b"), q(insert), q("rollback to b"), q(insert), q("rollback")},
		want: []string{"BEGIN ZT", warned + "SAVEPOINT role=superseded ZT", "INSERT 0 0 ZT", "RELEASE ZT", "INSERT 0 0 ZT", "SAVEPOINT ZT", "INSERT 0 0 ZT", "ROLLBACK ZT", "INSERT 0 0 ZT", "ROLLBACK ZI"}},
	{name: "chained", pieces: [][]byte{q("begin"), q(insert), q("commit and chain"), q(insert), q("rollback and chain"), q(insert), q("commit")},
		want: []string{"BEGIN ZT", warned + "INSERT 0 0 role=superseded ZT", "COMMIT ZT", warned + "INSERT 0 0 ZT", "ROLLBACK ZT", warned + "INSERT 0 0 ZT", "COMMIT ZI"}},
	{name: "extended", pieces: [][]byte{ends(run(insert)), ends(run("delete from t where id = $1 returning v", "1"))},
		want: []string{warned + "1 2 n INSERT 0 0" + told, warned + "1 2 T DELETE 0 ZI"}},
	{name: "prepared while it led", before: ends(parse("p", "insert into t (v) values ($1) returning id")), pieces: [][]byte{
		ends(bind("", "p", "stale"), exec("", 0)), ends(bind("x", "p", "stale"), desc('P', "x"), exec("x", 1)),
	}, want: []string{warned + "2 INSERT 0 0" + told, warned + "2 T INSERT 0 0 ZI"}},
	{name: "extended in a block", pieces: [][]byte{ends(run("begin")), ends(run(insert), run("update t set v = 'stale'")), ends(run("commit"))},
		want: []string{"1 2 n BEGIN ZT", warned + "1 2 n INSERT 0 0 1 2 n UPDATE 0 role=superseded ZT", "1 2 n COMMIT ZI"}},
	{name: "several in a batch", pieces: [][]byte{ends(run("begin"), run(insert), run("commit"), run(insert))},
		want: []string{"1 2 n BEGIN " + warned + "1 2 n INSERT 0 0 1 2 n COMMIT " + warned + "1 2 n INSERT 0 0" + told}},
	{name: "pipelined queries", pieces: [][]byte{cat(q(insert), q(insert))}, want: []string{warned + "INSERT 0 0" + told}},
	{name: "an error of Parse", pieces: [][]byte{q("insert into nowhere values (1)"), ends(run("update t set nothing = 1")), q("begin"), q("delete from nowhere"), q(insert), q("rollback")},
		want: []string{warned + "ERROR:42P01" + told, warned + "ERROR:42703 ZI", "BEGIN ZT", warned + "ERROR:42P01 ZE", "ERROR:25P02 ZE", "ROLLBACK ZI"}},
	{name: "an error of Bind", pieces: [][]byte{ends(run("update t set v = 'stale' where id = $1", "x"))}, want: []string{warned + "1 ERROR:22P02" + told}},
	{name: "a portal that is not there", pieces: [][]byte{
		q("begin"), q("savepoint a"), ends(bind("x", "p", "stale")), ends(exec("x", 0)), q("rollback to a"), ends(exec("x", 0)), q("rollback"),
	}, before: ends(parse("p", "insert into t (v) values ($1)")),
		want: []string{"BEGIN ZT", warned + "SAVEPOINT role=superseded ZT", "2 ZT", "INSERT 0 0 ZT", "ROLLBACK ZT", "ERROR:34000 ZE", "ROLLBACK ZI"}},
	{name: "reads", pieces: [][]byte{q("select v from t"), ends(run("select v from t")), q("show fencepost.role")}, want: []string{warned + "T D D SELECT 2" + told, "1 2 T D D SELECT 2 ZI", "T D SHOW ZI"}},
	{name: "a truncate", pieces: [][]byte{q("truncate t"), q("begin"), q(insert), q("truncate t"), q(insert), q("rollback"), ends(run("truncate t")), q(insert)},
		want: []string{warned + "ERROR:ZF001" + told, "BEGIN ZT", warned + "INSERT 0 0 ZT", "ERROR:ZF001 ZE", "ERROR:25P02 ZE", "ROLLBACK ZI", warned + "ERROR:ZF001 ZI", warned + "INSERT 0 0 ZI"}},
	{name: "several statements", pieces: [][]byte{q(insert + "; " + insert), q("select 1"), q(insert)}, want: []string{"ERROR:ZF001" + told, "T D SELECT 1 ZI", warned + "INSERT 0 0 ZI"}},
	{name: "copy", pieces: [][]byte{cat(q("copy t (v) from stdin"), wiretest.CopyFail("no more")), q("begin"), cat(q("copy t (v) from stdin"), wiretest.CopyFail("no more")), q("rollback")}, want: []string{"", "BEGIN ZT", "", "ROLLBACK ZI"}},
	{name: "what goes by the registry", pieces: [][]byte{q("do $$begin insert into t (v) values ('stale'); end$$"), q("vacuum t"), q(insert)}, want: []string{"ERROR:ZF001" + told, "ERROR:ZF001 ZI", warned + "INSERT 0 0 ZI"}},
	{name: "execute", before: q("prepare p as " + insert), pieces: [][]byte{q("execute p"), q(insert)}, want: []string{warned + "ERROR:ZF001" + told, warned + "INSERT 0 0 ZI"}},
	{name: "a cursor that was held", before: q("declare k cursor with hold for select 1"), since: 18, pieces: [][]byte{q("fetch k"), q("fetch k"), q("select count(*) from pg_cursors"), q(insert)},
		want: []string{"ERROR:ZF001" + told, "T D FETCH 1 ZI", "T D SELECT 1 ZI", warned + "INSERT 0 0 ZI"}},
	{name: "select that writes", pieces: [][]byte{q("select wr('stale')"), q("with x as (" + insert + " returning id) select * from x"), q("select nextval('s')"), q("select * from t for update"), q("notify x"), q("select lo_create(0)")},
		want: []string{"", "", "", "", "", ""}},
	{name: "behind a hidden deallocate", before: q("do $$begin execute 'deallocate all'; end$$"), pieces: [][]byte{q(insert), q("do $$begin end$$"), q(insert)},
		want: []string{warned + "INSERT 0 0" + told, "ERROR:ZF001 ZI", warned + "INSERT 0 0 ZI"}},
	{name: "behind a function that deallocates", before: cat(parse("f", "select forget()"), bind("", "f"), exec("", 0), sync_()), pieces: [][]byte{q(insert), ends(run(insert))},
		want: []string{warned + "INSERT 0 0" + told, warned + "1 2 n INSERT 0 0 ZI"}},
	{name: "declared types and formats", pieces: [][]byte{cat(parse("", "insert into d (id, c) values ($1, 1) returning id"), bind("", "", "5"), desc('P', ""), exec("", 1), flush(), sync_())},
		want: []string{warned + "1 2 T INSERT 0 0" + told}},
	{name: "a query behind a parse that fails", pieces: [][]byte{cat(parse("", "insert into nowhere values (1)"), q(insert), sync_()), q(insert)},
		want: []string{warned + "ERROR:42P01" + told, warned + "INSERT 0 0 ZI"}},
	{name: "a query behind a write and a parse that fails", pieces: [][]byte{cat(run(insert), parse("", "insert into nowhere values (1)"), q(insert), sync_()), q(insert)},
		want: []string{warned + "1 2 n INSERT 0 0 ERROR:42P01" + told, warned + "INSERT 0 0 ZI"}},
	{name: "a portal whose Close was skipped", before: ends(parse("p", "insert into t (v) values ($1)")), pieces: [][]byte{
		q("begin"), ends(bind("x", "p", "stale")), q("savepoint a"), ends(parse("", "select nothing"), wiretest.Close('P', "x")), q("rollback to a"), ends(exec("x", 0)), q("rollback"),
	}, want: []string{"BEGIN ZT", warned + "2 role=superseded ZT", "SAVEPOINT ZT", "ERROR:42703 ZE", "ROLLBACK ZT", "ERROR:ZF001 ZE", "ROLLBACK ZI"}},
	{name: "a query in an open batch", pieces: [][]byte{cat(parse("y", "select 1"), q(insert), sync_())}, want: []string{warned + "1 INSERT 0 0" + told}},
}

// TestSafetyWhatUndoesReadOnlyModeIsRolledBack: PostgreSQL 14 and 15 let a function that runs
// while a write is planned undo the read-only mode of a stale transaction. What it has written
// is rolled back, whether the write is executed or not.
func TestSafetyWhatUndoesReadOnlyModeIsRolledBack(t *testing.T) {
	t.Parallel()
	early, checked := "update t set v = 'stale' where id = undo_early()", cat(parse("", "insert into u values ($1)"), bind("", "", "checked"))
	onVersions(t, func(c *fixture.Cluster) {
		c.Exec(undoing)
		for name, pieces := range map[string][][]byte{
			"a Query":                      {q(early)},
			"an Execute":                   {ends(checked, exec("", 0))},
			"a Bind":                       {ends(checked)},
			"a Bind, then a read":          {ends(checked, run("values (1)"))},
			"a Bind, then a Query":         {cat(parse("", early), bind("", ""), q("delete from c"), sync_())},
			"a Bind, then a function call": {cat(checked, wiretest.Msg('F', []byte{0, 0, 5, 0x13}, make([]byte, 6)), sync_())}, // now()
			"a Bind in a block":            {q("begin"), ends(checked), q("commit")},
			"a Bind, then COMMIT":          {ends(run("begin"), checked, run("commit"))},
		} {
			conn := c.Leader("w " + name)
			c.Supersede()
			before := c.Number("select count(*) from t")
			for _, piece := range pieces {
				all, ended := fixture.Ask(conn, piece)
				c.T.Logf("%s: %q: %s, ended %v", name, piece, answers(all), ended)
				if ended {
					c.T.Errorf("%s: the session has ended: %v", name, all)
				}
			}
			if after := c.Number("select count(*) from t"); after != before {
				c.T.Errorf("%s: the table had %d rows, and has %d", name, before, after)
			}
		}
	})
}

// TestSafetyStaleWritesAreDiscarded: a superseded worker's writes are answered as if they had
// changed nothing, and change nothing; what cannot be answered so is refused. The session
// goes on.
func TestSafetyStaleWritesAreDiscarded(t *testing.T) {
	t.Parallel()
	onVersions(t, func(c *fixture.Cluster) {
		major := c.Number("select current_setting('server_version_num')::int / 10000")
		for _, s := range sessions {
			if s.since > major {
				continue
			}
			c.T.Run(strings.ReplaceAll(s.name, " ", "_"), func(t *testing.T) {
				c := c.With(t)
				conn := c.Leader("w" + strings.ReplaceAll(s.name, " ", ""))
				if s.before != nil {
					fixture.MustPass(t, conn, s.before)
				}
				c.Supersede()
				before := holds(c)
				for i, piece := range s.pieces {
					all, ended := fixture.Ask(conn, piece)
					got := answers(all)
					t.Logf("%q: %s", piece, got)
					switch want := s.want[i]; {
					case ended, want != "" && got != want, want == "" && !strings.Contains(got, "ERROR:ZF001"):
						t.Errorf("%q: got %q, ended %v; want %q; %v", piece, got, ended, want, all)
						return
					}
				}
				if after := holds(c); after != before {
					t.Errorf("the database held\n%s\nand holds\n%s", before, after)
				}
			})
		}
	})
}
