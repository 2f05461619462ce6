package system

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestAWaitingWorkerOutlivesItsIdleSessionTimeout: its backend is idle while it waits to lead. The timeout counts
// again when it leads.
func TestAWaitingWorkerOutlivesItsIdleSessionTimeout(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p := h.proxy()
	leader := h.join(p, "a", "campaign", "wait")
	h.pg.Exec(t, pgtest.Superuser, h.db, "ALTER DATABASE "+h.db+" SET idle_session_timeout = '5s'")
	waited := make(chan error, 1)
	var b *client
	go func() {
		var err error
		b, err = h.tryJoin(2*process.Patience, p, "b", "campaign", "wait")
		waited <- err
	}()
	process.Eventually(t, process.Patience, "the backend of the worker that waits to have been idle for 7 s", func() bool {
		return ask[int64](h, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = $1 AND state = 'idle'
			AND clock_timestamp() - state_change BETWEEN '7s' AND '60s' AND backend_start > (SELECT min(a.backend_start) FROM pg_stat_activity a
				WHERE a.datname = current_database() AND a.usename = $1)`, pgtest.App) == 1
	})
	leader.leave()
	if err := <-waited; err != nil {
		t.Fatalf("the worker that waited: %v", err)
	}
	var timeout string
	if err := b.QueryRow(t.Context(), "SELECT setting || unit || source FROM pg_settings WHERE name = 'idle_session_timeout'").Scan(&timeout); err != nil || timeout != "5000msdatabase" {
		t.Errorf("when it leads, its idle_session_timeout is %q (%v)", timeout, err)
	}
	b.must("INSERT INTO work VALUES ('b')")
	if got := h.granted(); got != "a b" {
		t.Errorf("granted to %q", got)
	}
}

// works are the things that a leader may wait for, for longer than the worker timeout. A slow
// test has the worker timeout between two of its steps. Each returns when the leader has its reply.
var works = map[string]func(c *stalledCase){
	"a Query": func(c *stalledCase) { c.query(c.leader, "SELECT pg_sleep(9)") },
	"a batch": func(c *stalledCase) {
		c.leader.Send(wiretest.Run("SELECT pg_sleep(9)"), wiretest.Sync())
		c.leader.Until('Z')
	},
	"a batch with Flush": func(c *stalledCase) {
		c.leader.Send(wiretest.Run("SELECT pg_sleep(9)"), wiretest.Flush())
		c.leader.Until('C')
	},
	"a fast path call": func(c *stalledCase) {
		c.query(c.leader, "BEGIN")
		c.leader.Send(wiretest.Msg('F', []byte{0, 0, 10, 66, 0, 1, 0, 1, 0, 1, 0, 0, 0, 8}, binary.BigEndian.AppendUint64(nil, 0x4022000000000000), []byte{0, 1}))
		c.leader.Until('Z')
	},
	"a DO by the registry": func(c *stalledCase) { c.query(c.leader, "DO $$BEGIN PERFORM pg_sleep(9); END$$") },
	"COPY in with a trigger": func(c *stalledCase) {
		c.leader.Send(wiretest.Query("COPY slow FROM STDIN"))
		c.leader.Until('G')
		c.leader.Send(wiretest.CopyData("works\n"), wiretest.CopyDone())
		c.leader.Until('Z')
	},
	"COPY in that does not take all": func(c *stalledCase) {
		c.leader.Send(wiretest.Query("COPY slow FROM STDIN"))
		c.leader.Until('G') // from here on it is silent until it sends
		_ = c.leader.SetWriteDeadline(time.Now().Add(process.Patience))
		c.leader.Send(wiretest.CopyData("works\n"))
		row := wiretest.CopyData(strings.Repeat("x", 60000))
		for range 500 {
			if _, err := c.leader.Write(row); err != nil {
				c.t.Fatalf("send COPY data: %v", err)
			}
		}
		c.leader.Send(wiretest.CopyFail("enough"))
		c.leader.Until('Z')
	},
	"COPY out, read slowly": func(c *stalledCase) {
		c.leader.Send(wiretest.Query("COPY (" + manyRows + ") TO STDOUT"))
		c.readSlowly(9 * time.Second)
	},
	"the lock of a stranger": func(c *stalledCase) {
		stranger, _ := wiretest.Connect(c.t, c.pg.Addr(), "user", pgtest.App, "database", c.db)
		c.query(stranger, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
		c.again() // idle
		c.waits(c.leader, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
		time.Sleep(9 * time.Second)
		c.query(stranger, "SELECT pg_advisory_unlock_all()")
		c.leader.Until('Z')
	},
	"its own busy connection": func(c *stalledCase) {
		busy := c.again()
		c.query(busy, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
		busy.Send(wiretest.Query("SELECT pg_sleep(9), pg_advisory_unlock_all()"))
		c.waits(c.leader, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
		c.leader.Until('Z')
	},
}

// readSlowly reads up to ReadyForQuery, for at least that long.
func (c *stalledCase) readSlowly(during time.Duration) {
	c.t.Helper()
	for n := range 50000 {
		if n%100 == 0 {
			time.Sleep(during / 500)
		}
		if _, err := c.leader.Next(); err != nil {
			c.t.Fatalf("read slowly: %v", err)
		}
	}
	c.leader.Until('Z')
}

// TestWaitingLeaderIsNotReplaced checks that a leader that waits for its server keeps
// its lease, however long it waits.
func TestWaitingLeaderIsNotReplaced(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "LEASE_GRACE="+stalledGrace.String()))
	h.pg.Exec(t, pgtest.App, h.db, `CREATE TABLE slow (what text);
		CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF new.what = 'works' THEN PERFORM pg_sleep(9); END IF; RETURN new; END$$;
		CREATE TRIGGER slowly BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION slowly()`)
	one, two := h.proxy(), h.proxy()
	for name, work := range works {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mine := *h
			mine.t = t
			c := &stalledCase{cluster: &mine, one: one, two: two, resource: name, timeout: 6 * time.Second}
			c.leader = c.again("fencepost.campaign", "wait")
			rival := wiretest.Dial(t, two.Address)
			rival.Send(wiretest.Startup(c.params("fencepost.worker", "rival", "fencepost.campaign", "wait")...))
			work(c)
			if got := c.granted(); got != "leader" {
				t.Errorf("granted to %q, want only the leader", got)
			}
		})
	}
}
