package protocol_test

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/protocol"
)

func (h *harness) count(t *testing.T, v string) int {
	return pgtest.Ask[int](t, h.pg, h.db, "select count(*)::int from t where v = '"+v+"'")
}

// TestAfterRollbackTo: what follows ROLLBACK TO in a failed block runs, and is refused if it may write.
func TestAfterRollbackTo(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.exec(targets)
		h.readCatalog()
		c := h.connect()
		for how, m := range map[string][]byte{
			"text": Q("rollback to a; select frees(); commit"), "batch": Batch(Run("rollback to a"), Run("select frees()"), Run("commit")),
		} {
			h.exec("truncate t")
			got := each(c, Q("begin"), Q("savepoint a"), Q("select 1/0"), m, Q("rollback"))
			if n := h.count(t, "f"); n != 0 {
				t.Errorf("%s: a follower has written %d rows, answered by %q", how, n, got)
			}
		}
		l := h.direct()
		l.Exec("listen wp")
		for how, m := range map[string][]byte{
			"text": Q("rollback to a; notify wp; commit"), "batch": Batch(Run("rollback to a"), Run("notify wp"), Run("commit")),
		} {
			got := each(c, Q("begin"), Q("savepoint a"), Q("select 1/0"), m, Q("rollback"))
			for _, x := range l.Exec("select 1") {
				if x.Type == 'A' {
					t.Errorf("%s: a follower has notified, answered by %q", how, got)
				}
			}
		}
	})
}

// TestABindOfASQLPrepare: what a leader has prepared by SQL is checked when it is bound.
func TestABindOfASQLPrepare(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.exec(targets)
		h.readCatalog()
		c := h.led(Q("prepare w as select frees()"))
		got := each(c, Batch(Bind("", "w"), Exec("", 0)))
		if n := h.count(t, "f"); n != 0 {
			t.Errorf("a worker that does not lead any more has written %d rows, answered by %q", n, got)
		}
		l := h.direct()
		l.Exec("listen wp")
		c = h.led(Q("prepare w as select pg_notify('wp', 'x')"))
		for how, m := range map[string][]byte{"execute": Q("execute w"), "bind": Batch(Bind("", "w"), Exec("", 0))} {
			got := each(c, m)
			for _, x := range l.Exec("select 1") {
				if x.Type == 'A' {
					t.Errorf("%s: it has notified, answered by %q", how, got)
				}
			}
		}
	})
}

// TestADefaultThatIsRolledBack: what a client does to default_transaction_read_only in a block that ends otherwise does not keep its worker from writing.
func TestADefaultThatIsRolledBack(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		for _, sql := range []string{
			"set default_transaction_read_only = on", "set default_transaction_read_only = off", "set local default_transaction_read_only = off",
			"set session characteristics as transaction read write", "select set_config('default_transaction_read_only', 'off', true)",
		} {
			for _, end := range []string{"rollback", "commit"} {
				h.status.Store(follower)
				c := h.connect()
				if end == "commit" && sql == "set default_transaction_read_only = on" {
					continue
				}
				before := each(c, Q("begin"), Q(sql), Q(end))
				h.status.Store(leader(9))
				got := each(c, Q("show fencepost.role"), Q(mine), Q(mine))
				if got[2] != "" {
					t.Errorf("%s, %s (%q): the leader's write is answered by %q", sql, end, before, got)
				}
			}
		}
	})
}

// TestAResetPreparedBeforeTheChoice: it is known when it is bound.
func TestAResetPreparedBeforeTheChoice(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.choosing(func() *fencing.Status { return leader(4) })
		for _, sql := range []string{"reset all", "discard all"} {
			h.exec("truncate t")
			h.status.Store(leader(9))
			h.config = func(c *protocol.Config) { c.Announced, c.Registered = 9, true }
			c := h.connect()
			got := each(c, Batch(Parse("ra", sql)), Q("set fencepost.resource = 'b'"), Q(mine))
			h.exec("truncate t")
			h.status.Store(follower) // r is another worker's
			got = append(got, each(c, Batch(Bind("", "ra"), Exec("", 0)), Q(mine))...)
			if n := h.rows(t); n != 0 {
				t.Errorf("%s: %d rows of a worker that does not lead what it is back at, answered by %q", sql, n, got)
			}
		}
	})
}

// TestNothingIsChosenUnseen: what chooses another worker's resource in a text or batch that ends a failed block first, or in
// a text that is not read, writes nothing. A batch that chooses in the middle does not know prepared names, and may only
// use what it has prepared.
func TestNothingIsChosenUnseen(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.exec(targets)
		h.readCatalog()
		h.choosing(func() *fencing.Status { return follower }) // b is another worker's
		h.status.Store(leader(9))
		h.lazy.Store(true)
		h.config = func(c *protocol.Config) { c.Announced, c.Registered = 9, true }
		const choose = "set local fencepost.resource = 'b'"
		failed := [][]byte{Q("begin"), Q("savepoint a"), Q("select 1/0")}
		for how, send := range map[string][][]byte{
			"a text behind a failed block":                     append(failed, Q("rollback; begin; "+choose+"; "+mine+"; commit")),
			"a batch behind a failed block":                    append(failed, Batch(Run("rollback"), Run("begin"), Run(choose), Run(mine), Run("commit"))),
			"a text for the session behind a failed block":     append(failed, Q("rollback; set fencepost.resource = 'b'; "+mine)),
			"a text behind a savepoint":                        append(failed, Q("rollback to a; "+choose+"; "+mine+"; commit")),
			"a long text":                                      {Q("begin; " + choose + "; " + mine + "; select '" + strings.Repeat("x", 300<<10) + "'; commit")},
			"a text with a backslash":                          {Q("set standard_conforming_strings = off"), Q("begin; " + choose + "; " + mine + `; select '\\'; commit`)},
			"a prepared name in a batch that chooses in front": {Batch(Parse("w", "select frees()")), Batch(Run("begin"), Run(choose), Bind("", "w"), Exec("", 0), Run("commit")), Q("rollback")},
		} {
			h.exec("truncate t")
			c := h.connect()
			got := each(c, send...)
			if n := h.rows(t) + h.count(t, "f"); n != 0 {
				t.Errorf("%s: %d rows of a worker that does not lead what it has chosen, answered by %q", how, n, got)
			}
		}
	})
}

// TestShowAndSetInOneText: they are sent once.
func TestShowAndSetInOneText(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.status.Store(leader(9))
		h.lazy.Store(true)
		h.config = func(c *protocol.Config) { c.Announced, c.Registered = 9, true }
		c := h.connect()
		c.Send(Q("set fencepost.epoch = 9; show fencepost.epoch"))
		answered := make(chan error, 1)
		go func() {
			_, err := c.Next()
			answered <- err
		}()
		select {
		case <-answered:
		case <-time.After(time.Minute):
			h.mu.Lock()
			t.Errorf("no answer for a minute, while the session needs room %d times and sends the server %d bytes", len(h.needs), len(h.sent))
			h.mu.Unlock()
			_ = c.Conn.Close()
			h.exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app' and datname = current_database()")
		}
	})
}

// TestALeaderAfterARefusedChoice: its block can still write after ROLLBACK TO.
func TestALeaderAfterARefusedChoice(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.choosing(func() *fencing.Status { return leader(4) })
		h.status.Store(leader(9))
		h.lazy.Store(true)
		h.config = func(c *protocol.Config) { c.Announced, c.Registered = 9, true }
		c := h.connect()
		for _, sql := range []string{"set local fencepost.resource = 'b'", "set fencepost.resource = 'b'", "set fencepost.token = 3"} {
			got := each(c, Q("begin"), Q(mine), Q("savepoint s"), Q(sql), Q("rollback to s"), Q(mine), Q("commit"))
			if got[5] != "" {
				t.Errorf("%s: %q", sql, got)
			}
			each(c, Q("rollback"))
		}
		each(c, Q("set fencepost.resource = 'b'"))
		if got := each(c, Q("begin"), Q(mine), Q("reset all"), Q(mine), Q("commit")); got[3] != "" {
			t.Errorf("reset all in a block: %q", got)
		}
	})
}
