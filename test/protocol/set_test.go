package protocol

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestParametersThatWouldMisleadCannotBeSet: SET of Fencepost's parameters fails as Postgres
// itself refuses a parameter that cannot be changed, where it stands in the stream. It is no
// refused write. SET fencepost.epoch, RESET ALL and DISCARD ALL work.
func TestParametersThatWouldMisleadCannotBeSet(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		leader := s.Leader("leader")
		unfenced, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
		for name, c := range map[string]*wiretest.Conn{"leader": leader, "follower": s.Connect("follower"), "unfenced": unfenced} {
			for sql, state := range map[string]string{
				"set fencepost.role = 'leader'":                "55P02",
				"set local fencepost.role to leader":           "55P02",
				`set session "fencepost".Role to default`:      "55P02",
				"reset fencepost.role":                         "55P02",
				"set fencepost.worker = 'other'":               "55P02",
				"set fencepost.campaign = wait":                "55P02",
				"set fencepost.worker_timeout = '1s'":          "55P02",
				"set fencepost.heartbeat = '1s'":               "55P02",
				"set fencepost.resuorce = 'other'":             "42704",
				"set work_mem = '1MB'; reset fencepost.worker": "55P02",
			} {
				all := fixture.MustFail(t, c, state, Q(sql))
				if name := strings.Fields(sql)[1]; strings.HasPrefix(name, "fencepost.") && !strings.Contains(errorMessage(all), `"`+name+`"`) {
					t.Errorf("%s: %v does not name the parameter", sql, all)
				}
				if !strings.Contains(sql, ";") {
					fixture.MustFail(t, c, state, Parse("", sql), Bind("", ""), Exec("", 0), Sync())
				}
				fixture.MustPass(t, c, Q("begin"))
				fixture.MustFail(t, c, state, Q(sql))
				fixture.MustFail(t, c, "25P02", Q("select 1"))
				fixture.MustFail(t, c, "25P02", Q("reset fencepost.role"))
				fixture.MustPass(t, c, Q("rollback"))
			}
			for _, sql := range []string{"set fencepost.epoch = 1", "reset fencepost.epoch", "reset all", "discard all", "set work_mem = '1MB'"} {
				fixture.MustPass(t, c, Q(sql))
				fixture.MustPass(t, c, Run(sql), Sync())
			}
			if name == "unfenced" {
				continue
			}
			if role := fixture.FirstValue(t, fixture.MustPass(t, c, Q("show fencepost.role"))); role != name {
				t.Errorf("the %s's role is %s", name, role)
			}
		}
		fixture.MustFail(t, unfenced, "55P02", Q("set fencepost.resource = 'other'"))
		fixture.MustFail(t, unfenced, "55P02", Q("reset fencepost.resource"))
		for _, messages := range [][]byte{Q("set local fencepost.resource = 'other'"), Batch(Run("set local fencepost.resource = 'other'"))} {
			fixture.MustPass(t, unfenced, Q("begin"))
			fixture.MustFail(t, unfenced, "55P02", messages)
			fixture.MustPass(t, unfenced, Q("rollback"))
		}
		fixture.MustFail(t, leader, "55P02", Q("insert into t values (100, 'text'); set fencepost.role = 'leader'"))
		fixture.MustFail(t, leader, "55P02", Run("insert into t values (101, 'batch')"), Run("set fencepost.role = 'leader'"), Run("insert into t values (102, 'batch')"), Sync())
		fixture.MustPass(t, leader, Q("insert into t values (103, 'after')"))
		if s.Rows("text") != 0 || s.Rows("batch") != 0 || s.Rows("after") != 1 {
			t.Errorf("%d, %d and %d rows; want 0, 0 and 1", s.Rows("text"), s.Rows("batch"), s.Rows("after"))
		}
		if all := s.Audited(t, s.DB); len(all) != 0 {
			t.Errorf("audited as refused writes: %+v", all)
		}
	})
}

// errorMessage returns the message of the error among the replies.
func errorMessage(all []wiretest.Message) string {
	for _, m := range all {
		if m.Type == 'E' {
			return m.Fields()['M']
		}
	}
	return ""
}

// TestTheServerKnowsTheParameters: whatever a session first does with a parameter of Fencepost's, the server knows it, as
// drivers need that prepare and describe a statement before they run it.
func TestTheServerKnowsTheParameters(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		reader := s.Leader("leader")
		s.Exec("create function shown_role() returns text language sql as $$select current_setting('fencepost.role')$$")
		fixture.MustFail(t, reader, "42704", Q("select shown_role()")) // whose text names no parameter
		fixture.MustPass(t, reader, Q("show fencepost.role"))
		if role := fixture.FirstValue(t, fixture.MustPass(t, reader, Q("select shown_role()"))); role != "leader" {
			t.Errorf("the role is %q in a function", role)
		}
		described := Cat(Parse("s", "show fencepost.role"), Desc('S', "s"))
		executed := Batch(Bind("", "s"), Exec("", 0))
		for what, pieces := range map[string][][]byte{ // the last one returns the role
			"describes SHOW":             {Batch(described), executed},
			"describes SHOW in a batch":  {Cat(Run("set work_mem = '1MB'"), described, executed)},
			"describes SHOW in a block":  {Q("begin"), Batch(described), Q("rollback"), executed},
			"shows":                      {Q("show fencepost.role")},
			"calls a function":           {Q("select current_setting('fencepost.role')")},
			"calls a function, prepared": {Batch(Run("select current_setting('fencepost.role')"))},
			"resets":                     {Q("reset fencepost.epoch"), Q("show fencepost.role")},
		} {
			t.Run(what, func(t *testing.T) {
				c := s.Connect("leader")
				var last []wiretest.Message
				for _, piece := range pieces {
					last = fixture.MustPass(t, c, piece)
				}
				if role := fixture.FirstValue(t, last); role != "leader" {
					t.Errorf("the role is %q", role)
				}
			})
		}
	})
}
