package safety

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// reading is a way to bring a session to read texts otherwise than by default:
// what the server is told beside the session, parameters of the startup, and
// messages in front, which are answered or not before the text is sent.
type reading struct {
	name      string
	admin     string
	params    []string
	before    [][]byte
	pipelined []byte
	batch     []byte // extended messages of the text's own batch
}

// readings are the ways to set a parameter to a value.
func readings(parameter, value string) []reading {
	set := fmt.Sprintf("set %s = '%s'", parameter, value)
	config := fmt.Sprintf("select set_config('%s', '%s', false)", parameter, value)
	return []reading{
		{name: "by SET", before: [][]byte{Q(set)}},
		{name: "by SET LOCAL", before: [][]byte{Q("begin"), Q(strings.Replace(set, "set", "set local", 1))}},
		{name: "by set_config", before: [][]byte{Q(config)}},
		{name: "by a function", before: [][]byte{Q("select turn('" + parameter + "', '" + value + "')")}},
		{name: "by SET in extended messages", before: [][]byte{Batch(Run(set))}},
		{name: "at the startup", params: []string{parameter, value}},
		{name: "by options", params: []string{"options", "-c " + parameter + "=" + value}},
		{name: "for the role", admin: "alter role {role} set " + parameter + " = '" + value + "'"},
		{name: "for the database", admin: "alter database {db} set " + parameter + " = '" + value + "'"},
		{name: "by RESET", params: []string{parameter, value}, before: [][]byte{Q(fmt.Sprintf("set %s = '%s'", parameter, usual[parameter])), Q("reset all")}},
		{name: "by DISCARD", params: []string{parameter, value}, before: [][]byte{Q(fmt.Sprintf("set %s = '%s'", parameter, usual[parameter])), Q("discard all")}},
		{name: "by ROLLBACK", before: [][]byte{Q(set), Q("begin"), Q(fmt.Sprintf("set %s = '%s'", parameter, usual[parameter])), Q("rollback")}},
		{name: "by SET in the pipeline", pipelined: Q(set)},
		{name: "by set_config in the pipeline", pipelined: Q(config)},
		{name: "by a function in the pipeline", pipelined: Q("select turn('" + parameter + "', '" + value + "')")},
		{name: "by SET in the batch", batch: Run(set)},
		{name: "by set_config in the batch", batch: Run(config)},
	}
}

var usual = map[string]string{"standard_conforming_strings": "on", "client_encoding": "UTF8"}

// hiding is a text of which one reading hides what the other runs: %s stands
// where it is.
type hiding struct{ name, parameter, value, text string }

// hidings have a character whose second byte is a backslash, in the encodings
// where there is one: in UHC and JOHAB, as Postgres has them, there is none.
var hidings = []hiding{
	{"strings of old", "standard_conforming_strings", "off", `select 'a\', ' %s --'`},
	{"strings of old, continued", "standard_conforming_strings", "off", "select 'a'\n'\\', ' %s --'"},
	{"strings of old, national", "standard_conforming_strings", "off", `select N'\', ' %s --'`},
	{"SJIS", "client_encoding", "SJIS", "select E'\x95\x5c'', ' %s --'"},
	{"SHIFT_JIS_2004", "client_encoding", "SHIFT_JIS_2004", "select E'\x95\x5c'', ' %s --'"},
	{"BIG5", "client_encoding", "BIG5", "select E'\xa4\x5c'', ' %s --'"},
	{"GBK", "client_encoding", "GBK", "select E'\x95\x5c'', ' %s --'"},
	{"GB18030", "client_encoding", "GB18030", "select E'\x95\x5c'', ' %s --'"},
}

const readingsSQL = `
create function turn(text, text) returns text language plpgsql as $$begin return set_config($1, $2, false); end$$;
`

// setUpReading brings a new connection of the worker to the reading. Who does not lead
// may not be let on 15, where a function of a user's is not proven.
func setUpReading(s *fixture.Cluster, t *testing.T, r reading, worker string) *wiretest.Conn {
	t.Helper()
	params := r.params
	if r.admin != "" {
		sql := strings.ReplaceAll(r.admin, "{db}", s.DB)
		if strings.Contains(sql, "{role}") {
			sql = strings.ReplaceAll(sql, "{role}", ownRole(s))
			params = append([]string{"user", ownRole(s)}, params...)
		}
		s.Exec(sql)
		undo := sql[:strings.Index(sql, " set ")+1] + "reset all"
		defer s.Exec(undo)
	}
	c := s.Connect(worker, params...)
	for _, b := range r.before {
		all, ended := fixture.Ask(c, b)
		if state := wiretest.ErrorOf(all); ended || state != "" && (state != "ZF002" || worker != "follower") {
			t.Fatalf("%s: %q: %v", r.name, b, all)
		}
	}
	return c
}

// TestSafetyHiddenTextOfThoseWhoDoNotLead: a text that is harmless as the proxy
// could read it, and calls what read-only mode lets pass as the server does.
func TestSafetyHiddenTextOfThoseWhoDoNotLead(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Exec(readingsSQL)
		s.Leader("leader")
		heard := newListener(t, s)
		for _, parameter := range []string{"standard_conforming_strings", "client_encoding"} {
			of := slices.DeleteFunc(slices.Clone(hidings), func(x hiding) bool { return x.parameter != parameter })
			for i := range readings(parameter, "") {
				x := of[i%len(of)] // each meets several readings, and each reading one
				r := readings(parameter, x.value)[i]
				text := fmt.Sprintf(x.text, ", pg_notify($$wp$$, $$stale$$)")
				sent := Q(text)
				if r.batch != nil || i/len(of)%2 == 1 {
					sent = Batch(Run(text))
				}
				c := setUpReading(s.With(t), t, r, "follower")
				sendPieces(t, c, Cat(r.pipelined, r.batch, sent))
				leaveNow(c)
				if n := heard(); n != "" {
					t.Errorf("%s %s: a follower was heard: %s", x.name, r.name, n)
				}
			}
		}
	})
}

// newListener listens to the channel wp, and returns what tells what was heard
// since it was asked last.
func newListener(t *testing.T, s *fixture.Cluster) func() string {
	t.Helper()
	conn, _ := wiretest.Connect(t, s.PG.Addr(), "user", pgtest.Superuser, "database", s.DB)
	conn.Exec("listen wp")
	return func() (heard string) {
		for _, m := range conn.Exec("select 1") {
			if m.Type == 'A' {
				heard += m.String()
			}
		}
		return heard
	}
}

// oddTexts are texts that a proxy may read otherwise than the server.
func oddTexts() []string {
	deep := func(n int) string {
		return "select " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n)
	}
	return []string{
		"\ufeffselect 1", "select\v1", "select\f1", "select\u00a01", "select 1\v; insert into t values (10, 'w')", "\v", "\finsert into t values (10, 'w')",
		"/* select */ insert into t values (10, 'w')", "/* /* ; */ ; */ insert into t values (10, 'w'); select count(*) from t", "select 1 /* no end", "/* no end; insert into t values (10, 'w')",
		"select 1 -- x\rinsert into t values (10, 'w')", "select 1 -- x\r\n; insert into t values (10, 'w')", "select 1 --\x01; commit\n; select 2",
		"select 1 +/* ; */ 2", "select 1 @-- ; \n 2", "select 2 */* ; commit; */ 3; insert into t values (10, 'w')", "select 1 //* ; */ 2", "select 1 /*/ ; */ ; select 2 /**/",
		`select 1 \; select 2`, `select 1\; insert into t values (10, 'w')`, "select 1 \\", "select 1;\\g",
		"select $$;commit;$$; insert into t values (10, 'w')", "select $a$ $b$; $a$; insert into t values (10, $b$ $a$ ; $b$)", "select $1$;$1$", "select $a$ no end; commit", "select a$b$ from (select 1 as a$b$) x; select 2",
		`select U&'\0041' ; select U&'!0041' uescape '!'; insert into t values (10, U&'d\0061t')`, `select U&'\00' `, `select U&"v" from t`, `select U&"!0076" uescape '!' from t; select 1`, `select U&'a' uescape '''`,
		`select U&"pg!005fnotify" uescape '!' ('wp', 'x')`, `select 'a' uescape '!'`, `select 'a'
			'b'; select 'a' -- x
			'b;'; insert into t values (10, 'w')`, "select 'a' 'b'", `select E'a\'; commit; --'`, `select e'\\'; insert into t values (10, 'w')`, `select B'01'; select X'1f'; select N'x'; select b'2'`,
		"select " + strings.Repeat("x", 70) + " from t", "select 1 as " + strings.Repeat("y", 64) + "; insert into t values (10, 'w')", `select 1 as "` + strings.Repeat("é", 40) + `"`,
		`select ""`, `select "a;b" from t; select 2`, `select 1 as "a""; commit; "; insert into t values (10, 'w')`, "select 1 as \"\x01\"",
		"select 1.5.6; select 2", "select 1e; select 2", "select 1_000; select 0x1F, 0o17, 0b11", "select 123abc; select 2", "select 1e'a\\'; commit; --'", "select 0xE'a\\'; commit; --'", "select $1a", "select 1..2",
		"select :a", "select ?", "select a ? 'x' from t", "select 1 where 1 = :'a'", "{call once(1)}", "; ; insert into t values (10, 'w') ; ; select 1 ;;", "begin; ; commit ;", "-- only\n;/* a */;",
		"select 1 union select 2; insert into t values (10, 'w') returning (select 1;", "select (1; select 2)", "select [1]; select array[1][1]", "select 1)", "create rule r as on insert to t do also (select 1; select 2); insert into t values (10, 'w')",
		"create function fa() returns int language sql begin atomic select 1; select 2; end; insert into t values (10, 'w')", "create function fb() returns int begin atomic end; select 1", "create procedure pc() begin atomic; commit",
		"alter table t add constraint k check (id > 0) not enforced; commit; insert into t values (10, 'w')", "create table vg (a int, b int generated always as (a * 2) virtual); insert into vg values (1); select * from vg",
		"update t set v = 'w' where id = 1 returning with (old as o, new as n) o.v, n.v; commit; insert into t values (11, 'x')", "select 1 group by all; insert into t values (10, 'w')",
		"begin; insert into t values (10, 'w') returning with (old as o) o.id; rollback; insert into t values (11, 'x')",
		"insert into t values (10, 'w')\x00", "\x00", "select 'a\x00b'", "insert into t values (10, 'w'); \x00 select 1",
		"insert into t values (10, '\xff')", "select '\xc0\xa7; commit; --'", "select '\xed\xa0\x80'", "select \xff", "insert into t values (10, 'é'); select 'ü' || nothing",
		deep(50), deep(3000), "select " + strings.Repeat("-", 20001) + "1", "select " + strings.Repeat("+ ", 5000) + "1", "select 1" + strings.Repeat("+1", 9000),
		"select " + strings.Repeat("not ", 4000) + "true", "select " + strings.Repeat("case when true then ", 900) + "1" + strings.Repeat(" end", 900), strings.Repeat("/*", 5000) + strings.Repeat("*/", 5000) + "select 1",
		"select 1" + strings.Repeat(" union select 1", 2000), "select array" + strings.Repeat("[", 3000) + "1" + strings.Repeat("]", 3000), "explain " + strings.Repeat("explain ", 50) + "select 1",
		"insert into t values (10, '" + strings.Repeat("x", 3<<20) + "')", "insert into t values (10, '" + strings.Repeat("x;", 1<<20) + "')", "select length('" + strings.Repeat(";", 300<<10) + "'); insert into t values (10, 'w')",
		"begin; insert into t values (10, 'w'); commit; select length('" + strings.Repeat("y", 2<<20) + "'), nothing",
	}
}

// TestSafetyOddTextsOfFollowers: whatever the text, a follower writes nothing, and its
// connection goes on.
func TestSafetyOddTextsOfFollowers(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Exec("drop table c, t cascade; drop function wr(text) cascade; " + fixture.TablesSQL + "; alter table t owner to app; alter table d owner to app")
		s.Leader("leader")
		before := s.Number("select count(*) from t")
		for _, x := range oddTexts() {
			s := s.With(t)
			c := s.Connect("follower")
			for _, piece := range [][]byte{Q(x), Batch(Run(x)), Q("rollback"), Q("select 1")} {
				if _, ended := sendPieces(t, c, piece); ended {
					t.Errorf("%.60q: the connection ended", x)
					break
				}
			}
			_ = c.Close()
			if n := s.Number("select count(*) from t"); n != before {
				t.Fatalf("%.60q: a follower wrote", x)
			}
		}
	})
}
