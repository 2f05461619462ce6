package several

import (
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestSafetyWhatFollowsAChoiceOfTheSession: a COMMIT behind a SET in its batch commits it, although the batch fails, and a
// ROLLBACK undoes it. The session goes by what the server shows.
func TestSafetyWhatFollowsAChoiceOfTheSession(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		s.SupersedeOn("b")
		const set, reset = "set fencepost.resource = 'b'", "reset fencepost.resource"
		for name, c := range map[string]struct {
			before   string
			messages []byte
			stays    string
		}{
			"a failure":              {"", Batch(Run(set), Run("select 1/0")), "r"},
			"a COMMIT":               {"", Batch(Run(set), Run("commit")), "b"},
			"a COMMIT and a failure": {"", Batch(Run(set), Run("commit"), Run("select 1/0")), "b"},
			"a ROLLBACK":             {"", Batch(Run(set), Run("rollback")), "r"},
			"a RESET and a failure":  {set, Batch(Run(reset), Run("select 1/0")), "b"},
			"a RESET and a ROLLBACK": {set, Batch(Run(reset), Run("rollback")), "b"},
		} {
			conn := chooserAs(s, another(s), "r")
			if c.before != "" {
				fixture.MustPass(t, conn, Q(c.before))
			}
			fixture.Ask(conn, c.messages)
			if shown := show(t, conn, "resource"); shown != c.stays {
				t.Errorf("%s: the session's resource is %s, want %s", name, shown, c.stays)
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
