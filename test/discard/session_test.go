package discard

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// staleSession is what a session sends while it leads, and, once it was superseded, piece by piece, and how each
// piece is answered.
type staleSession struct {
	name   string
	before []byte
	pieces [][]byte
	want   []string // "": an error ZF001
}

const (
	insert = "insert into t (v) values ('stale')"
	told   = " role=superseded ZI"
)

// sessions are what proxy/protocol does not compare with the answers of Postgres, and some of what it does.
var sessions = []staleSession{
	{name: "in a block", pieces: [][]byte{Q("begin"), Q(insert), Q("select v from t"), Q("update t set v = 'stale' returning id"), Q("commit")},
		want: []string{"BEGIN role=superseded ZT", "INSERT 0 0 ZT", "T D D SELECT 2 ZT", "T UPDATE 0 ZT", "COMMIT ZI"}},
	{name: "extended", pieces: [][]byte{Batch(Run(insert)), Batch(Run("delete from t where id = $1 returning v", "1"))},
		want: []string{"1 2 n INSERT 0 0" + told, "1 2 T DELETE 0 ZI"}},
	{name: "prepared while it led", before: Batch(Parse("p", "insert into t (v) values ($1) returning id")), pieces: [][]byte{
		Batch(Bind("", "p", "stale"), Exec("", 0)), Batch(Bind("x", "p", "stale"), Desc('P', "x"), Exec("x", 1)),
	}, want: []string{"2 INSERT 0 0" + told, "2 T INSERT 0 0 ZI"}},
	{name: "extended in a block", pieces: [][]byte{Batch(Run("begin")), Batch(Run(insert), Run("update t set v = 'stale'")), Batch(Run("commit"))},
		want: []string{"1 2 n BEGIN role=superseded ZT", "1 2 n INSERT 0 0 1 2 n UPDATE 0 ZT", "1 2 n COMMIT ZI"}},
	{name: "several in a batch", pieces: [][]byte{Batch(Run("begin"), Run(insert), Run("commit"), Run(insert))},
		want: []string{"1 2 n BEGIN 1 2 n INSERT 0 0 1 2 n COMMIT ERROR:ZF005" + told}},
	{name: "a portal of an earlier batch", before: Batch(Parse("p", "insert into t (v) values ($1)")), pieces: [][]byte{Q("begin"), Batch(Bind("x", "p", "stale")), Batch(Exec("x", 0)), Q("rollback")},
		want: []string{"BEGIN role=superseded ZT", "2 ZT", "ERROR:ZF001 ZE", "ROLLBACK ZI"}},
	{name: "reads", pieces: [][]byte{Q("select v from t"), Batch(Run("select v from t")), Q("show fencepost.role")}, want: []string{"T D D SELECT 2" + told, "1 2 T D D SELECT 2 ZI", "T D SHOW ZI"}},
	{name: "a truncate", pieces: [][]byte{Q("truncate t"), Q("begin"), Q(insert), Q("truncate t"), Q(insert), Q("rollback"), Batch(Run("truncate t")), Q(insert)},
		want: []string{"ERROR:ZF001" + told, "BEGIN ZT", "INSERT 0 0 ZT", "ERROR:ZF001 ZE", "ERROR:25P02 ZE", "ROLLBACK ZI", "ERROR:ZF001 ZI", "INSERT 0 0 ZI"}},
	{name: "copy", pieces: [][]byte{Cat(Q("copy t (v) from stdin"), wiretest.CopyFail("no more")), Q("begin"), Cat(Q("copy t (v) from stdin"), wiretest.CopyFail("no more")), Q("rollback")}, want: []string{"", "BEGIN ZT", "", "ROLLBACK ZI"}},
	{name: "what read-only mode lets through", pieces: [][]byte{Q("do $$begin insert into t (v) values ('stale'); end$$"), Q("vacuum t"), Q("notify x"), Q("select lo_create(0)"), Q(insert)},
		want: []string{"ERROR:ZF001" + told, "ERROR:ZF001 ZI", "", "", "INSERT 0 0 ZI"}},
	{name: "execute", before: Q("prepare p as " + insert), pieces: [][]byte{Q("execute p"), Q(insert)}, want: []string{"ERROR:ZF001" + told, "INSERT 0 0 ZI"}},
	{name: "a cursor that was held", before: Q("declare k cursor with hold for select 1"), pieces: [][]byte{Q("fetch k"), Q(insert)}, want: []string{"T D FETCH 1" + told, "INSERT 0 0 ZI"}},
	{name: "select that writes", pieces: [][]byte{Q("select wr('stale')"), Q("with x as (" + insert + " returning id) select * from x"), Q("select nextval('s')"), Q("select * from t for update")},
		want: []string{"", "", "", ""}},
	{name: "behind a DEALLOCATE that is not seen", before: Q("do $$begin execute 'deallocate all'; end$$"), pieces: [][]byte{Q(insert), Batch(Run(insert))}, want: []string{"INSERT 0 0" + told, "1 2 n INSERT 0 0 ZI"}},
}

// TestSafetyWhatUndoesReadOnlyModeIsRolledBack: PostgreSQL 15 lets a function that runs
// while a write is planned undo the read-only mode of a stale transaction. What it has written
// is rolled back, whether the write is executed or not.
func TestSafetyWhatUndoesReadOnlyModeIsRolledBack(t *testing.T) {
	t.Parallel()
	early, checked := "update t set v = 'stale' where id = undo_early()", Cat(Parse("", "insert into u values ($1)"), Bind("", "", "checked"))
	onServers(t, func(c *fixture.Cluster) {
		c.Exec(undoing)
		for name, pieces := range map[string][][]byte{
			"a Query":                      {Q(early)},
			"an Execute":                   {Batch(checked, Exec("", 0))},
			"a Bind":                       {Batch(checked)},
			"a Bind, then a read":          {Batch(checked, Run("values (1)"))},
			"a Bind, then a Query":         {Cat(Parse("", early), Bind("", ""), Q("delete from c"), Sync())},
			"a Bind, then a function call": {Batch(checked, wiretest.Msg('F', []byte{0, 0, 5, 0x13}, make([]byte, 6)))}, // now()
			"a Bind in a block":            {Q("begin"), Batch(checked), Q("commit")},
			"a Bind, then COMMIT":          {Batch(Run("begin"), checked, Run("commit"))},
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
// changed nothing, and change nothing; what cannot be answered so is refused, and on 15 all of it. The session
// goes on.
func TestSafetyStaleWritesAreDiscarded(t *testing.T) {
	t.Parallel()
	onServers(t, func(c *fixture.Cluster) {
		discards := c.Number("select current_setting('server_version_num')::int") >= 160000
		for _, s := range sessions {
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
					got, want := answers(all), s.want[i]
					wrong := discards && (want != "" && got != want || want == "" && !strings.Contains(got, "ERROR:ZF001"))
					if ended || wrong || !discards && strings.Contains(got, "INSERT 0") {
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
