package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing/sqltext"
)

// TestExplainSaysWhatTheProxyDoes: for each statement of the write paths, and
// for some that write nothing, what explain says of it is what the proxy does.
func TestExplainSaysWhatTheProxyDoes(t *testing.T) {
	t.Parallel()
	texts := []string{
		"select 1", "table t", "show work_mem", "set work_mem = '1MB'", "set fencepost.epoch = 5", "show fencepost.role", "listen x", "begin", "commit", "rollback",
		"savepoint a", "release a", "rollback to a", "discard all", "deallocate all", "fetch all from k", "close k", "explain select 1", "copy t to stdout",
		"prepare transaction 'x'", "commit prepared 'x'", "rollback prepared 'x'", "begin read only", "start transaction isolation level serializable", "commit and chain", "reset all",
	}
	for _, p := range writePaths() {
		if p.call == nil {
			texts = append(append(texts, p.before...), p.sql...)
		}
	}
	for _, sql := range texts {
		all := sqltext.Explain(sql)
		if len(all) != 1 {
			t.Errorf("%s: explained as %d statements", sql, len(all))
			continue
		}
		e := all[0]
		alone := e.Kind == sqltext.NonTransactional
		leader := inFront(t, sql, true, !alone)
		follower := inFront(t, sql, false, !alone)
		var want, wantFollower string
		switch {
		case strings.HasPrefix(e.Check, "none"), strings.HasPrefix(e.Check, "behind"):
			want, wantFollower = "nothing", "nothing"
		case strings.HasPrefix(e.Check, "nowhere"):
			want, wantFollower = "refusal", "refusal"
		case strings.HasPrefix(e.Check, "outside a block"), strings.HasPrefix(e.Check, "on the control connection"):
			want, wantFollower = "registry", "check"
		default:
			want, wantFollower = "check", "check"
			if e.Read {
				wantFollower = "read only"
			}
		}
		if e.Kind == sqltext.ShowFence {
			want, wantFollower = "value", "value"
		}
		if leader != want || follower != wantFollower {
			t.Errorf("%s: the proxy puts %s in front for the leader, %s for a follower; explain says %q (read %v)", sql, leader, follower, e.Check, e.Read)
		}
	}
}
