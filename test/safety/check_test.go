package safety

import (
	"bytes"
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

// checkName reads the name of the session's prepared check, as any client can.
func checkName(t *testing.T, c *wiretest.Conn) string {
	t.Helper()
	all := fixture.MustPass(t, c, Q("select * from prepared() n where n like 'fencepost_check_%'"))
	for _, m := range all {
		if m.Type == 'D' {
			_, name, _ := bytes.Cut(m.Body, []byte("fencepost_check_"))
			return "fencepost_check_" + string(name)
		}
	}
	t.Fatalf("the check is not among the prepared statements: %v", all)
	return ""
}

// TestSafetyClientTakesTheChecksName: a client that frees the name of the check,
// and prepares something harmless under it, is checked none the less.
func TestSafetyClientTakesTheChecksName(t *testing.T) {
	t.Parallel()
	const harmless = "select null::boolean from (select $1::bigint, $2::bigint) x"
	for name, take := range map[string]func(check string) [][]byte{
		"by SQL":             func(c string) [][]byte { return [][]byte{Q("deallocate " + c), Q("prepare " + c + " as " + harmless)} },
		"by SQL in one text": func(c string) [][]byte { return [][]byte{Q("deallocate " + c + "; prepare " + c + " as " + harmless)} },
		"by messages":        func(c string) [][]byte { return [][]byte{Batch(Shut('S', c), Parse(c, harmless))} },
		"by messages and SQL": func(c string) [][]byte {
			return [][]byte{Batch(Shut('S', c)), Q("prepare " + c + " as " + harmless)}
		},
		"by a prepared one": func(c string) [][]byte {
			return [][]byte{Batch(Parse("d", "deallocate "+c)), Q("execute d"), Batch(Parse(c, harmless))}
		},
		"all of them": func(c string) [][]byte { return [][]byte{Q("deallocate all"), Batch(Parse(c, harmless))} },
		"by guessing the next": func(c string) [][]byte {
			return [][]byte{Batch(Parse(c[:len(c)-1]+"2", harmless)), Q("deallocate " + c)}
		},
		"in a text too long to read": func(c string) [][]byte {
			return [][]byte{Q("deallocate " + c + "; prepare " + c + " as " + harmless + " -- " + long)}
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := fixture.NewCluster(t, pgtest.Shared(t))
			client := s.Leader("w")
			check := "fencepost_check_x_1"
			if fencing.Checking {
				check = checkName(t, client)
			}
			for _, piece := range take(check) {
				if _, ended := fixture.Ask(client, piece); ended {
					t.Fatalf("%.200q ended the connection", piece)
				}
			}
			s.Supersede()
			fixture.MustEnd(t, client, "ZF001", Q(stale))
			if s.Rows("stale") != 0 {
				t.Error("the stale row is there")
			}
		})
	}
}

// TestSafetyReadOnlyModeIsNotUndone: a worker that does not lead cannot leave
// the read-only mode of its transaction, to write in it or as it commits.
func TestSafetyReadOnlyModeIsNotUndone(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for name, undo := range map[string]string{
		"reset": "reset transaction_read_only", "set to default": "set transaction_read_only to default",
		"set config": "select set_config('transaction_read_only', 'off', true)", "set": "set transaction_read_only = off",
		"set transaction": "set transaction read write", "begin": "begin read write",
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := s.With(t)
			for i, sql := range []string{"commit", "select wr('stale'); commit", "fetch all from h; commit", "commit"} {
				client := s.Connect("follower")
				if i == 3 {
					_ = client.Close()
					client, _ = wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB) // without a resource
				}
				fixture.MustPass(t, client, Q("begin"))
				all, _ := fixture.Ask(client, Q("declare h cursor with hold for select wr('stale')"))
				undone, _ := fixture.Ask(client, Q(undo))
				written, _ := fixture.Ask(client, Q(sql))
				_ = client.Close()
				if s.Rows("stale") != 0 {
					t.Fatalf("a follower wrote: %v %v %v", all, undone, written)
				}
			}
		})
	}
}

// TestSafetyPreparedTransactionIsRefused: it would outlive the session that was
// checked.
func TestSafetyPreparedTransactionIsRefused(t *testing.T) {
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
// worker is stopped, bytes of a write in its socket, waits or ends it.
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
			if name == "in a transaction" {
				fixture.Eventually(t, "the grant ends the backend", func() bool { return !fencing.Checking || terminated(t, pid) })
			} else {
				<-granted
			}
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
