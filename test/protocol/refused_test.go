package protocol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestProtocolRefusals: what a worker is told that may not write, or not yet, or no
// more, and what it can do after that.
func TestProtocolRefusals(t *testing.T) {
	t.Parallel()
	const ins = "insert into t values (10, 'x')"
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
		admin := p.PG.Connect(t, pgtest.Superuser, db)
		fixture.LeaderConn(t, p, db)
		grant := func(worker string) step { return then(func(*session) { p.Candidacy(db, "r", worker).Grant() }) }
		succeed := func(worker string) step {
			return then(func(*session) {
				wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", worker)
				p.Candidacy(db, "r", worker).Grant()
			})
		}
		lapse := func(worker string, lapsed bool) step {
			return then(func(*session) {
				candidacy := p.Candidacy(db, "r", worker)
				st := *candidacy.Status()
				if st.Role, st.Lapsed = fencing.Leader, lapsed; lapsed {
					st.Role = fencing.Follower
				}
				candidacy.SetStatus(&st)
			})
		}
		for _, s := range []struct {
			worker, want string // of the errors, in order
			script       script
		}{
			{"f1", "ZF002", newScript("refused query", at("Z", Q(ins)), at("Z", Q("select 1")))},
			{"f2", "ZF002", newScript("refused batch", at("Z", Run(ins), Run("select 1"), Sync()), at("Z", Run("select 1"), Sync()))},
			{"f3", "ZF002 25P02", newScript("refused in a block", at("Z", Q("begin")), at("Z", Q(ins)), at("Z", Q("select 1")), at("Z", Q("rollback")))},
			{"f4", "ZF002", newScript("refused among others", at("Z", Q("select 1; "+ins+"; select 2")))},
			{"f5", "ZF002 ZF002 ZF002", newScript("refused alone", at("Z", Q("vacuum t")), at("Z", Q("do $$begin commit; end$$")), at("Z", fnCall(1610)))},
			{"f6", "ZF002", newScript("refused savepoint", at("Z", Q("begin; savepoint a")), at("Z", Q(ins)), at("Z", Q("rollback to a")), at("Z", Q("select 1")), at("Z", Q("commit")))},
			{"f7", "ZF002 ZF002", newScript("refused copy", at("Z", Q("copy t from stdin"), wiretest.CopyData("1\tx\n"), wiretest.CopyDone()), at("Z", Parse("", "copy t from stdin"), Bind("", ""), Exec("", 0), wiretest.CopyDone(), Sync()))},
			{"f8", "ZF002", newScript("refused by a function", at("Z", Q("select wr(1)")))},
			{"g1", "ZF003", newScript("starts over", at("Z", Q("select 1")), grant("g1"), at("Z", Q(ins)), at("Z", Q("delete from t")))},
			{"g2", "ZF003", newScript("starts over in a batch", at("Z", Q("select 1")), grant("g2"), at("Z", Run(ins), Sync()), at("Z", Run("delete from t"), Sync()))},
			{"g3", "", newScript("asks for the epoch", at("Z", Q("show fencepost.role")), grant("g3"), at("Z", Q("show fencepost.epoch")), at("Z", Q("delete from t")))},
			{"g4", "ZF002", newScript("lapses", at("Z", Q("show fencepost.role")), grant("g4"), at("Z", Q("show fencepost.role")), at("Z", Q("delete from t")), lapse("g4", true), at("Z", Q(ins)), lapse("g4", false), at("Z", Q("delete from t")))},
			{"g5", "ZF001", newScript("is superseded", at("Z", Q("show fencepost.role")), grant("g5"), at("Z", Q("show fencepost.role")), at("Z", Q("delete from t")), succeed("h1"), at("$", Q(ins)))},
			{"g6", "ZF001", newScript("is superseded in a batch", at("Z", Q("show fencepost.role")), grant("g6"), at("Z", Q("show fencepost.role")), succeed("h2"), at("$", Run(ins), Sync()))},
			{"g7", "ZF001", newScript("is superseded before a DO", at("Z", Q("show fencepost.role")), grant("g7"), at("Z", Q("show fencepost.role")), succeed("h3"), at("$", Q("do $$begin commit; end$$")))},
		} {
			if _, err := admin.Exec(t.Context(), fixture.ResetTables); err != nil {
				t.Fatal(err)
			}
			all := s.script.run(t, p.Addr, admin, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", s.worker).got
			var errors []string
			for _, m := range all {
				if m.Type == 'E' {
					errors = append(errors, m.Fields()['C'])
				}
			}
			if got := strings.Join(errors, " "); got != s.want {
				t.Errorf("%s: errors %q, want %q", s.script.name, got, s.want)
			}
		}
	})
}

// TestRefusalsWithExitOnError: the server ends the session at any error then. What is refused is told
// and recorded as it always is.
func TestRefusalsWithExitOnError(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		s.Leader("leader")
		for _, c := range []struct {
			by         *wiretest.Conn
			code, text string
		}{
			{s.Connect("follower"), "ZF002", "insert into t (v) values ('stale')"},
			{s.Connect("follower"), "ZF002", "do $$begin end$$"},
			{s.Connect("follower"), "ZF005", "prepare transaction 'x'"},
			{s.Connect("follower"), "22P02", "select 'x'::int"},
		} {
			fixture.MustPass(t, c.by, Q("set exit_on_error = on"))
			s.Proxy.Audit.Forget()
			all, ended := fixture.Ask(c.by, Q(c.text))
			last := all[len(all)-1].Fields()
			ours := strings.HasPrefix(c.code, "ZF")
			if !ended || last['C'] != c.code || last['S'] != "FATAL" || strings.HasSuffix(last['M'], "["+c.code+"]") != ours {
				t.Errorf("%s: %v, ended %t; want FATAL %s and the end", c.text, all, ended, c.code)
			}
			if audited := s.Proxy.Audited(t, s.DB); ours != (len(audited) == 1 && audited[0].SQLState == c.code && audited[0].Statement == c.text) {
				t.Errorf("%s: recorded %+v", c.text, audited)
			}
		}
	})
}

// tries are what a superseded worker sends after open, which has n replies, and what is recorded of that.
var tries = []struct {
	name       string
	open, late []byte
	n          int
	text       string // the start of what is recorded
	write      bool
	known      bool // only if the proxy knows that the worker is superseded, something is refused
}{
	{name: "Query", late: Q(staleSQL), text: staleSQL, write: true},
	{name: "messages", late: Batch(Run(staleSQL)), text: staleSQL, write: true},
	{name: "long Query", late: Q(longStaleSQL), text: longStaleSQL[:500], write: true},
	{name: "long Parse", late: Batch(Run(longStaleSQL)), text: longStaleSQL[:500], write: true},
	{name: "behind Close", late: Batch(Shut('S', "old"), Run(staleSQL)), text: staleSQL, write: true},
	{name: "behind Describe", late: Batch(Desc('S', "old"), Run(staleSQL)), text: staleSQL, write: true},
	{name: "behind Sync", late: Cat(Sync(), Batch(Run(staleSQL))), text: staleSQL, write: true},
	{name: "fast path call", late: fnCall(715), text: "FunctionCall", write: true},
	{name: "behind BEGIN", late: Batch(Run("BEGIN"), Run(staleSQL)), text: staleSQL, write: true},
	{name: "behind Query BEGIN", late: Cat(Q("BEGIN"), Batch(Run(staleSQL))), text: staleSQL, write: true},
	{name: "behind a read", late: Batch(Run("select 1"), Run(staleSQL)), text: staleSQL, write: true},
	{name: "behind a Query that reads", late: Cat(Q("select 1"), Q(staleSQL)), text: staleSQL, write: true},
	{name: "long, behind a read", late: Cat(Q("select 1"), Q(longStaleSQL)), text: staleSQL, write: true},
	{name: "prepared before", open: Batch(Parse("s", staleSQL)), n: 1, late: Batch(Bind("", "s"), Exec("", 0)), text: staleSQL, write: true},
	{name: "portal of before", open: Cat(Q("begin"), Batch(Parse("", "insert into t (v) values ('stale') returning v"), Bind("p", ""))), n: 2, late: Batch(Exec("p", 0)), write: true, known: true},
	{name: "other portal than before", open: Batch(Run(staleSQL)), n: 1, late: Batch(Run("select 1")), text: "select 1"},
	{name: "part of a Query", late: Q(staleSQL)[:20], text: staleSQL[:15], write: true, known: true},
	{name: "part of a batch", late: Cat(Run("select 1"), Parse("", staleSQL)[:20]), text: staleSQL[:14], write: true, known: true},
	{name: "part of a header", late: Q(staleSQL)[:2], write: true, known: true},
	{name: "part of before", open: Cat(Q("select 1"), Q(staleSQL)[:20]), n: 1, text: staleSQL[:15], write: true, known: true},
	{name: "COPY of before", open: Cat(Q("copy t (v) from stdin"), wiretest.CopyData("stale\n")), text: "copy t (v) from stdin", write: true, known: true},
	{name: "a read", late: Q("select 1"), text: "select 1"},
	{name: "reads", late: Batch(Run("select 1"), Run("select 1")), text: "select 1", known: true},
	{name: "BEGIN", late: Batch(Run("BEGIN")), text: "BEGIN", known: true},
	{name: "Sync", late: Sync(), known: true},
}

const staleSQL = "insert into t (v) values ('stale')"

var longStaleSQL = staleSQL + strings.Repeat(", ('stale')", 20_000)

// TestEachRefusalOfTheSupersededIsRecorded: one line names the first text that may write, whether the proxy knows
// already that the worker is superseded or its check finds that.
func TestEachRefusalOfTheSupersededIsRecorded(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg)
		for i, c := range tries {
			for _, known := range []bool{true, false} {
				if c.known && !known {
					continue
				}
				w := fmt.Sprint("w", i, known)
				conn := s.Leader(w)
				conn.Send(c.open)
				for range c.n {
					conn.Until('Z')
				}
				if c.open != nil && c.n == 0 {
					conn.Until('G')
				}
				s.Proxy.Audit.Forget()
				candidacy := s.Candidacy(s.DB, "r", w)
				if known {
					st := *candidacy.Status()
					st.Role = fencing.Superseded
					candidacy.SetStatus(&st)
				} else {
					s.Supersede()
				}
				conn.Send(c.late)
				all := conn.Rest()
				if last := all[len(all)-1].Fields(); last['C'] != fencing.StateSuperseded || last['V'] != "FATAL" {
					t.Errorf("%s, known %t: %v, want FATAL ZF001", c.name, known, all)
				}
				got := s.Proxy.Audited(t, s.DB)
				if len(got) != 1 || got[0].Write != c.write || !strings.HasPrefix(got[0].Statement, c.text) || c.text == "" && got[0].Statement != "" {
					t.Errorf("%s, known %t: recorded %+v, want one with %.100q, write %t", c.name, known, got, c.text, c.write)
				}
			}
		}
		if n := s.Rows("stale"); n != 2 { // those of leaders
			t.Errorf("%d rows were written", n)
		}
	})
}
