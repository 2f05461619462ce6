package protocol

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestRestatedStatementsAnswerAsPostgresDoes: a text that is prepared again for each Bind
// brings its notices at its Parse only, and means what it meant there, whatever setting
// has changed since.
func TestRestatedStatementsAnswerAsPostgresDoes(t *testing.T) {
	t.Parallel()
	compareScripts(t,
		newScript("a notice of the Parse", at("Z", parse("s", "listen "+strings.Repeat("n", 70)), sync_()),
			at("Z", bind("", "s"), exec("", 0), sync_()), at("Z", wiretest.Describe('S', "s"), sync_())),
		newScript("backslash_quote", at("Z", parse("s", `set application_name = e'a\'b'`), sync_()),
			at("Z", q("set backslash_quote = off")), at("Z", bind("", "s"), exec("", 0), sync_())),
		newScript("client_encoding", at("Z", parse("s", "set search_path = \"caf\u00e9\", public"), sync_()),
			at("Z", q("set client_encoding = latin1")), at("Z", bind("", "s"), exec("", 0), sync_()),
			at("Z", q("set client_encoding = utf8")), at("Z", q("show search_path"))),
		newScript("a Bind that fails", at("Z", parse("s", "show work_mem"), sync_()), at("Z", twoFormats("s"), sync_()),
			at("Z", bind("", "s"), exec("", 0), sync_())),
		newScript("a Bind with values", at("Z", parse("s", "begin"), sync_()), at("Z", q("select 1")),
			at("Z", bind("", "s", "x"), exec("", 0), sync_())),
	)
}

// twoFormats is a Bind that Postgres refuses of a SHOW: two result formats for one column.
func twoFormats(stmt string) []byte {
	return wiretest.Msg('B', []byte("\x00"+stmt+"\x00"), []byte{0, 0, 0, 0, 0, 2, 0, 0, 0, 0})
}

// TestAFailedBindLeavesNothing: the server skips the Close after a Bind that fails, so
// what was prepared for it is closed with the next checks.
func TestAFailedBindLeavesNothing(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := s.Leader("leader")
		fixture.MustPass(t, c, cat(parse("s", "show work_mem"), sync_()))
		for range 5 {
			fixture.MustPass(t, c, q("do $$begin end$$")) // takes new names
			fixture.MustFail(t, c, "08P01", cat(twoFormats("s"), sync_()))
			fixture.MustPass(t, c, cat(run("show fencepost.role"), sync_()))
			fixture.MustPass(t, c, q("do $$begin end$$"))
		}
		all := fixture.MustPass(t, c, q("select count(*) from pg_prepared_statements where name <> 's'"))
		if n := fixture.FirstValue(t, all); n != "0" {
			t.Errorf("%s statements of others are listed", n)
		}
	})
}

// TestRoleAfterALapsedRefusal: the refusal fails in the place of what was prepared for
// it, which SHOW fencepost.role then finds.
func TestRoleAfterALapsedRefusal(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		c := s.Leader("leader")
		lapsed := *s.Candidacy(s.DB, "r", "leader").Status()
		lapsed.Role, lapsed.Lapsed = fencing.Follower, true
		s.Candidacy(s.DB, "r", "leader").SetStatus(&lapsed)
		fixture.MustFail(t, c, "ZF002", cat(run("insert into t (v) values ('x')"), sync_()))
		fixture.MustPass(t, c, cat(run("show fencepost.role"), sync_()))
	})
}

// TestFollowersPipelineOfPreparedStatements: some Bind of a long pipeline stands across
// the end of a read.
func TestFollowersPipelineOfPreparedStatements(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("leader")
		c := s.Connect("follower")
		fixture.MustPass(t, c, cat(parse("st", "show work_mem"), sync_(), q("select 1")))
		c.Until('Z')
		for range 3 {
			all, ended := fixture.Ask(c, cat(bytes.Repeat(cat(bind("", "st"), exec("", 0)), 3000), sync_()))
			if state := wiretest.ErrorOf(all); state != "" || ended {
				t.Fatalf("%v, ended %v, after %d messages", all[len(all)-2:], ended, len(all))
			}
		}
	})
}

// TestShortTextsAreAlwaysKept: a follower's BEGIN passes for its text, also when the
// session's texts take all the room there is.
func TestShortTextsAreAlwaysKept(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("leader")
		c := s.Connect("follower")
		n := 0
		for size := 1 << 17; size > 0; size /= 2 {
			for range 7 {
				n++
				fixture.MustPass(t, c, cat(parse("l"+strconv.Itoa(n), strings.Repeat(";", size)), sync_()))
			}
		}
		fixture.MustPass(t, c, cat(parse("s", "begin"), sync_()))
		fixture.MustPass(t, c, cat(bind("", "s"), exec("", 0), sync_()))
	})
}
