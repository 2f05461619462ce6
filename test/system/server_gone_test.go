package system

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAWaitingWorkerWhoseServerIsGoneDoesNotWaitOn: it would be given the lease when
// its turn comes, but could not use it. It is told what Postgres said, and nothing of the
// fence, with which nothing is wrong.
func TestAWaitingWorkerWhoseServerIsGoneDoesNotWaitOn(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(h *cluster, pid uint32){
		"its backend is ended": func(h *cluster, pid uint32) { ask[bool](h, "SELECT pg_terminate_backend($1)", int32(pid)) },
		"Postgres restarts":    func(h *cluster, _ uint32) { h.pg.Restart(h.t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", onServer(pgtest.Start(t)))
			p := h.proxy()
			leader := h.join(p, "leader", "campaign", "wait")
			leader.must("INSERT INTO work VALUES ('before')")
			waits, ended, once := make(chan bool), make(chan error, 1), sync.Once{}
			config, err := pgx.ParseConfig(h.dsn(p, "waiter", "campaign", "wait"))
			if err != nil {
				t.Fatal(err)
			}
			config.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) { once.Do(func() { close(waits) }) } // for whom it waits
			ctx, cancel := context.WithTimeout(t.Context(), process.Patience)
			defer cancel()
			go func() {
				conn, err := pgx.ConnectConfig(ctx, config)
				if err == nil {
					_ = conn.Close(ctx)
				}
				ended <- err
			}()
			select {
			case <-waits:
			case err := <-ended:
				t.Fatalf("it did not wait: %v", err)
			}
			pid := ask[uint32](h, "SELECT pid FROM pg_stat_activity WHERE usename = $1 AND datname = $2 AND pid <> $3",
				pgtest.App, h.db, int32(leader.PgConn().PID()))
			end(h, pid)
			select {
			case err := <-ended:
				if f := failureOf(err); f == nil || f.Code != "57P01" || strings.Contains(f.Message+f.Hint, "fence") {
					t.Errorf("the waiting worker was told: %v (%+v); want 57P01", err, f)
				}
			case <-time.After(5 * time.Second):
				t.Error("it is still waiting")
				leader.leave()
				<-ended
			}
		})
	}
}
