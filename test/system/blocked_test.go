package system

import (
	"context"
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
)

// TestABlockedTakeoverIsShown: while a backend of the last leader cannot be ended, whether it
// is in a checked transaction or registered, nobody leads, and the operator sees both.
func TestABlockedTakeoverIsShown(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{"checked": "BEGIN; INSERT INTO work VALUES ('x')", "registered": "DO $$BEGIN PERFORM pg_sleep(60); END$$"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl = 3 * time.Second
			h := newCluster(t, "postgres", with("LEASE_TTL="+ttl.String()))
			p, q := h.proxy(), h.proxy()
			leader := h.join(p, "leader", "campaign", "wait")
			pid := int(leader.PgConn().PID())
			if name == "checked" {
				leader.must(sql)
			} else {
				go leader.exec(sql)
				process.Eventually(t, process.Patience, "the registration", func() bool { return ask[int](h, "SELECT count(*) FROM fencepost.running") == 1 })
			}
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			_ = leader.PgConn().Conn().Close()
			ctx, cancel := context.WithCancel(t.Context())
			next := make(chan error, 1)
			t.Cleanup(func() { cancel(); <-next })
			go func() {
				c, err := pgconn.Connect(ctx, h.dsn(q, "next", "campaign", "wait"))
				if err == nil {
					_ = c.Close(ctx)
				}
				next <- err
			}()
			var seen struct {
				Leaderless float64  `json:"leaderless_seconds"`
				Here       bool     `json:"here"`
				State      string   `json:"state"`
				Leader     string   `json:"leader"`
				Blocked    []string `json:"takeover_blocked_by"`
			}
			process.Eventually(t, 2*process.Patience, "the takeover to be shown as blocked, for longer than the lease could be held", func() bool {
				_, body := q.Get(t, "/v1/resources/"+h.db+"/"+resource)
				seen.Blocked = nil
				return json.Unmarshal([]byte(body), &seen) == nil && len(seen.Blocked) == 1 && seen.Leaderless > 2*ttl.Seconds()
			})
			if seen.Here || seen.Leader != "" || seen.State != "contested" {
				t.Errorf("the leader that has gone is said to lead: %+v", seen)
			}
		})
	}
}
