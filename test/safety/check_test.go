package safety

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// TestPreparedTransactionIsRefused: it would outlive the session that was
// checked.
func TestPreparedTransactionIsRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	client := s.Leader("w")
	for _, write := range [][]byte{
		Q("begin; " + stale + "; prepare transaction 'x'"),
		Q("begin; " + stale + "; prepare transaction 'x' -- " + long),
		Q("begin; " + stale + "; prepare/**/transaction 'x' -- " + long),
		Batch(Run("begin"), Run(stale), Run("prepare transaction 'x'")),
		Batch(Run("begin"), Run(stale), Run("/*"+long+"*/ prepare transaction 'x'")),
	} {
		all, ended := fixture.Ask(client, write)
		if ended || wiretest.ErrorOf(all) != "ZF005" {
			t.Errorf("%.80q: got %v, ended %v; want ZF005", write, all, ended)
		}
		fixture.MustPass(t, client, Q("rollback"))
		if n := s.Number("select count(*) from pg_prepared_xacts where database = current_database()"); n != 0 {
			s.Exec("rollback prepared 'x'")
			t.Errorf("%.80q: prepared", write)
		}
	}
}

// TestSafetyFrozenBackend: a grant that comes while the server's process of the
// worker is stopped, bytes of a write in its socket, ends it, and waits until it is gone.
func TestSafetyFrozenBackend(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]byte{"idle": Q("select 1"), "in a transaction": Q("begin; insert into t (v) values ('stale')")} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := fixture.NewCluster(t, pgtest.Shared(t))
			s.Connect("successor")
			client := s.Leader("w")
			fixture.MustPass(t, client, before)
			pid := s.Number("select pid from pg_stat_activity where usename = 'app' and datname = current_database() order by backend_start desc limit 1")
			resume := fixture.FreezeProcess(t, pid)
			answer := fixture.ReadReply(client, 2)
			client.Send(Q(stale), Q("commit"))
			granted := make(chan struct{})
			go func() {
				defer close(granted)
				s.Grant("successor")
			}()
			fixture.Eventually(t, "the grant ends the backend", func() bool { return !fencing.Checking || terminated(t, pid) })
			resume()
			<-granted
			answer.Wait()
			_ = client.Close()
			fixture.Eventually(t, "the worker's backend has ended", func() bool { return s.Number("select count(*) from pg_stat_activity where pid = $1", pid) == 0 })
			if n := s.Rows("stale"); n != 0 {
				t.Errorf("%d rows of the old epoch; the client got %v", n, answer.All)
			}
		})
	}
}

// terminated reports whether SIGTERM waits for a stopped process.
func terminated(t *testing.T, pid int) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "ShdPnd:")
	line, _, _ := strings.Cut(after, "\n")
	mask, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask>>(uint(syscall.SIGTERM)-1)&1 == 1
}
