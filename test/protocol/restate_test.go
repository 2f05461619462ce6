package protocol

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestRestatedStatementsAnswerAsPostgresDoes: a text that is prepared again for each Bind
// brings its notices at its Parse only, and means what it meant there, whatever setting
// has changed since.
func TestRestatedStatementsAnswerAsPostgresDoes(t *testing.T) {
	t.Parallel()
	compareScripts(t,
		newScript("a notice of the Parse", at("Z", Parse("s", "listen "+strings.Repeat("n", 70)), Sync()),
			at("Z", Bind("", "s"), Exec("", 0), Sync()), at("Z", wiretest.Describe('S', "s"), Sync())),
		newScript("backslash_quote", at("Z", Parse("s", `set application_name = e'a\'b'`), Sync()),
			at("Z", Q("set backslash_quote = off")), at("Z", Bind("", "s"), Exec("", 0), Sync())),
		newScript("client_encoding", at("Z", Parse("s", "set search_path = \"caf\u00e9\", public"), Sync()),
			at("Z", Q("set client_encoding = latin1")), at("Z", Bind("", "s"), Exec("", 0), Sync()),
			at("Z", Q("set client_encoding = utf8")), at("Z", Q("show search_path"))),
		newScript("a Bind that fails", at("Z", Parse("s", "show work_mem"), Sync()), at("Z", twoFormats("s"), Sync()),
			at("Z", Bind("", "s"), Exec("", 0), Sync())),
		newScript("a Bind with values", at("Z", Parse("s", "begin"), Sync()), at("Z", Q("select 1")),
			at("Z", Bind("", "s", "x"), Exec("", 0), Sync())),
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
		fixture.MustPass(t, c, Batch(Parse("s", "show work_mem")))
		for range 5 {
			fixture.MustPass(t, c, Q("do $$begin end$$")) // takes new names
			fixture.MustFail(t, c, "08P01", Batch(twoFormats("s")))
			fixture.MustPass(t, c, Batch(Run("show fencepost.role")))
			fixture.MustPass(t, c, Q("do $$begin end$$"))
		}
		all := fixture.MustPass(t, c, Q("select count(*) from pg_prepared_statements where name <> 's'"))
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
		fixture.MustFail(t, c, "ZF002", Batch(Run("insert into t (v) values ('x')")))
		fixture.MustPass(t, c, Batch(Run("show fencepost.role")))
	})
}

// TestFollowersPipelineOfPreparedStatements: some Bind of a long pipeline stands across
// the end of a read.
func TestFollowersPipelineOfPreparedStatements(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.Leader("leader")
		c := s.Connect("follower")
		fixture.MustPass(t, c, Cat(Parse("st", "show work_mem"), Sync(), Q("select 1")))
		c.Until('Z')
		for range 3 {
			all, ended := fixture.Ask(c, Batch(bytes.Repeat(Cat(Bind("", "st"), Exec("", 0)), 3000)))
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
				fixture.MustPass(t, c, Batch(Parse("l"+strconv.Itoa(n), strings.Repeat(";", size))))
			}
		}
		fixture.MustPass(t, c, Batch(Parse("s", "begin")))
		fixture.MustPass(t, c, Batch(Bind("", "s"), Exec("", 0)))
	})
}
