package several

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestSafetyNothingFollowsAChoiceOfTheSession: what stands behind it in its batch could undo it on
// the server, or keep it there although its batch fails. Writes would then be checked for another
// resource than the one that the server shows.
func TestSafetyNothingFollowsAChoiceOfTheSession(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("b")
		const set, reset = "set fencepost.resource = 'b'", "reset fencepost.resource"
		for name, c := range map[string]struct {
			before   string
			messages []byte
			stays    string // what the server has for fencepost.resource
		}{
			"a COMMIT and a failure": {"", Batch(Run(set), Run("commit"), Run("select 1/0")), "r"},
			"a ROLLBACK":             {"", Batch(Run(set), Run("rollback")), "r"},
			"a BEGIN":                {"", Batch(Run(set), Run("begin")), "r"},
			"a Query":                {"", Cat(Run(set), Q("rollback")), "r"},
			"a RESET and a ROLLBACK": {set, Batch(Run(reset), Run("rollback")), "b"},
			"a RESET and a BEGIN":    {set, Batch(Run(reset), Run("begin")), "b"},
		} {
			conn := chooserAs(s, another(s), "r")
			if c.before != "" {
				fixture.MustPass(t, conn, Q(c.before))
			}
			all, ended := fixture.Ask(conn, c.messages)
			if ended || wiretest.ErrorOf(all) != "ZF005" {
				t.Errorf("%s: %v, ended %v; want ZF005", name, all, ended)
			}
			value := fixture.FirstValue(t, fixture.MustPass(t, conn, Q("select coalesce(nullif(current_setting('fencepost.resource', true), ''), 'r')")))
			if value != c.stays || show(t, conn, "resource") != c.stays {
				t.Errorf("%s: the server has %s, want %s", name, value, c.stays)
			}
			want := ""
			if c.stays == "b" {
				want = "ZF002"
			}
			if got, _ := fixture.Ask(conn, Q(write("behind"))); wiretest.ErrorOf(got) != want {
				t.Errorf("%s: a write behind it gets %v, want %q", name, got, want)
			}
		}
	})
}

// TestNothingChoosesUnseen: Fencepost does not know which statement runs, or not what it says,
// so that it would check what follows for another resource than the one that the server shows.
func TestNothingChoosesUnseen(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("b")
		const set, local = "set fencepost.resource = 'b'", "set local fencepost.resource = 'b'"
		typed := wiretest.Msg('P', []byte("\x00"+set+"\x00\x00\x01\x00\x00\x00\x17"))
		for name, c := range map[string]struct {
			state    string
			before   [][]byte
			messages []byte
		}{
			"a name that is not ASCII":      {"ZF005", [][]byte{Batch(Parse("é", set))}, Batch(Bind("", "é"), Exec("", 0))},
			"a name that may be another's":  {"ZF005", [][]byte{Batch(Parse("s", set)), Q("do $$ begin perform 'deallocate'; end $$")}, Batch(Bind("", "s"), Exec("", 0))},
			"a SET of one transaction":      {"ZF005", [][]byte{Batch(Parse("é", local)), Q("begin")}, Batch(Bind("", "é"), Exec("", 0))},
			"a text that is long":           {"ZF005", [][]byte{Batch(Parse("s", local+strings.Repeat(" ", 1<<10))), Q("begin")}, Batch(Bind("", "s"), Exec("", 0))},
			"a text with a backslash":       {"ZF005", [][]byte{Batch(Parse("s", `set fencepost.resource = E'\x62'`)), Q("select 1")}, Batch(Bind("", "s"), Exec("", 0))},
			"EXECUTE of a SET of the token": {"ZF005", [][]byte{Batch(Parse("s", "set fencepost.token = '3'"))}, Q("execute s")},
			"EXECUTE":                       {"ZF005", [][]byte{Batch(Parse("s", set))}, Q("execute s")},
			"EXECUTE in a text":             {"ZF005", [][]byte{Batch(Parse("s", local))}, Q("begin; execute s; " + write("unknown"))},
			"EXECUTE, as messages":          {"ZF005", [][]byte{Batch(Parse("s", local)), Q("begin")}, Batch(Run("execute s"))},
			"EXECUTE in a text too long":    {"ZF005", [][]byte{Batch(Parse("s", local)), Q("begin")}, Q("execute s /*" + strings.Repeat(" ", 1<<20) + "*/")},
			"EXECUTE of another's name":     {"ZF005", [][]byte{Batch(Parse("é", set))}, Q("execute é")},
			"a portal of another name":      {"ZF005", [][]byte{Q("begin"), Batch(Parse("s", local), Bind("é", "s"))}, Batch(Exec("ö", 0))},
			"a portal that was closed":      {"ZF005", [][]byte{Q("begin"), Batch(Parse("s", local), Bind("p", "s")), Batch(Shut('P', "p"))}, Batch(Exec("p", 0))},
			"a statement with a parameter":  {"ZF005", nil, Batch(typed, Bind("", "", "7"), Exec("", 0))},
			"FROM CURRENT":                  {"22023", [][]byte{Q("select set_config('fencepost.resource', 'b', false)")}, Q("set fencepost.resource from current")},
			"FROM CURRENT, as messages":     {"22023", nil, Batch(Run("set fencepost.resource from current"))},
			"FROM CURRENT of a transaction": {"22023", [][]byte{Q("begin")}, Q("set local fencepost.resource from current")},
		} {
			conn := chooserAs(s, another(s), "r")
			for _, messages := range c.before {
				fixture.MustPass(t, conn, messages)
			}
			t.Log(name)
			fixture.MustFail(t, conn, c.state, c.messages)
		}

		// The unnamed statement is still the SET: the server has skipped the Parse behind it.
		skipped := chooserAs(s, another(s), "r")
		fixture.MustPass(t, skipped, Batch(Parse("b", "begin"), Parse("", local)))
		fixture.MustFail(t, skipped, "26000", Batch(Bind("", "none"), Parse("", "select 1")))
		fixture.MustPass(t, skipped, Batch(Bind("p", "b"), Exec("p", 0)))
		fixture.MustFail(t, skipped, "ZF005", Batch(Bind("", ""), Exec("", 0)))

		// Names that are not known are only refused if one of them may choose.
		conn := chooserAs(s, another(s), "r")
		fixture.MustPass(t, conn, Batch(Parse("é", write("unknown")), Parse("s", set)))
		fixture.MustPass(t, conn, Batch(Bind("", "é"), Exec("", 0)))
		fixture.MustPass(t, conn, Q("prepare p as "+write("unknown")+"; execute p"))
		fixture.MustPass(t, conn, Q("begin"))
		fixture.MustPass(t, conn, Batch(Run("set local fencepost.resource = 'r'")))
		fixture.MustPass(t, conn, Batch(Parse("", "select 1"), Bind("p", "")))
		fixture.MustPass(t, conn, Batch(Exec("p", 0))) // not in the batch of its Bind
		fixture.MustPass(t, conn, Q("commit"))
		fixture.MustPass(t, conn, Batch(Shut('S', "s")))
		fixture.MustPass(t, conn, Q("prepare q as "+write("unknown")+"; execute q"))
		fixture.MustPass(t, conn, Batch(Parse("ö", set)))
		fixture.MustFail(t, conn, "ZF005", Batch(Bind("", "é"), Exec("", 0)))
		fixture.MustPass(t, conn, Batch(Run(write("known"))))
		if s.Rows("unknown") != 3 || s.Rows("known") != 1 {
			t.Errorf("%d rows by unknown statements and %d by a known one, want 3 and 1", s.Rows("unknown"), s.Rows("known"))
		}
	})
}

// TestChoicesAreBounded: what a choice costs the proxy does not grow with what the client sends.
func TestChoicesAreBounded(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewCluster(t, pg, func(cfg *proxy.Config) { cfg.Observe = nil }) // it reads no texts of that length
		c := chooserAs(s, another(s), "r", "b")
		fixture.MustFail(t, c, "22023", Q("set fencepost.resource = 'b"+strings.Repeat(" ", fencing.MaxResources)+"'"))
		fixture.MustFail(t, c, "22023", Batch(Run("set fencepost.resource = '"+strings.Repeat("b,", fencing.MaxResources/2)+"b'")))

		var many strings.Builder
		for i := range 20 {
			fmt.Fprintf(&many, "begin; set local fencepost.resource = 'b%s'; commit; ", strings.Repeat(" ", i))
		}
		fixture.MustFail(t, c, "54000", Q(many.String()))
		fixture.MustPass(t, c, Q("rollback"))
		for range 20 { // the same value is one
			fixture.MustPass(t, c, Q(strings.Repeat("begin; set local fencepost.resource = 'b'; commit; ", 20)))
		}

		// 8 MB of checks are enough for one text.
		fixture.MustPass(t, c, Q("set fencepost.resource = 'b"+strings.Repeat(" ", fencing.MaxResources-1)+"'"))
		text := strings.Repeat(write("one of many")+"; commit; ", 1200)
		all := fixture.MustFail(t, c, "54000", Q(text))
		if n := s.Rows("one of many"); n == 0 || n >= 1200 {
			t.Errorf("%d rows were written, and the answer ends with %v", n, all[len(all)-2:])
		}
		// What was planned is sent before there is more of it.
		const queries = 1000
		fixture.AskAll(c, queries, bytes.Repeat(Q(write("one by one")), queries))
		if n := s.Rows("one by one"); n != queries {
			t.Errorf("%d rows were written, want %d", n, queries)
		}
	})
}

// TestATextIsReadUnderAChoice: what it means depends on settings, which what was sent before may have
// changed.
func TestATextIsReadUnderAChoice(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := chooserAs(s, another(s), "r")
		fixture.MustPassEach(t, c, "begin", "set local fencepost.resource = 'r'")
		all, ended := fixture.AskAll(c, 3, Q("select 1/0"), Q("rollback; select 'é'; select 1"), Q(write("behind it")))
		if ended || wiretest.ErrorOf(all) != "22012" || s.Rows("behind it") != 1 {
			t.Errorf("got %v, ended %v, and %d rows", all, ended, s.Rows("behind it"))
		}
	})
}
