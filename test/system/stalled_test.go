package system

import (
	"crypto/tls"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// Times of the cases in which a worker stops in the middle of an exchange.
const (
	stalledTimeout = 2 * time.Second
	stalledGrace   = 300 * time.Millisecond
)

// stalledCase is a leader that sends nothing more once stall has returned.
type stalledCase struct {
	*cluster
	one, two *process.Server
	resource string
	timeout  time.Duration // worker timeout
	leader   *wiretest.Conn
}

// params returns the parameters of one of the leader's connections.
func (c *stalledCase) params(more ...string) []string {
	return append([]string{
		"user", pgtest.App, "database", c.db, "fencepost.resource", c.resource, "fencepost.worker", "leader",
		"fencepost.worker_timeout", c.timeout.String(),
	}, more...)
}

// again opens another connection of the leader.
func (c *stalledCase) again(more ...string) *wiretest.Conn {
	c.t.Helper()
	conn, _ := wiretest.Connect(c.t, c.one.Address, c.params(more...)...)
	return conn
}

// query runs a statement that must not fail.
func (c *stalledCase) query(conn *wiretest.Conn, sql string) {
	c.t.Helper()
	if all := conn.Exec(sql); wiretest.ErrorOf(all) != "" {
		c.t.Fatalf("%s: %v", sql, all)
	}
}

// waits sends a statement and returns when it is waiting for a lock.
func (c *stalledCase) waits(conn *wiretest.Conn, sql string) {
	c.t.Helper()
	conn.Send(wiretest.Query(sql))
	process.Eventually(c.t, process.Patience, sql+" to wait for a lock", func() bool {
		return ask[int](c.cluster, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%'||$1", sql) == 1
	})
}

func (c *stalledCase) granted() string {
	return ask[string](c.cluster, "SELECT coalesce(string_agg(worker, ' ' ORDER BY epoch), '') FROM fencepost.grants WHERE resource = $1", c.resource)
}

// half returns the first half of a message.
func half(msg []byte) []byte { return msg[:len(msg)/2] }

// cut returns a message of that type without its end, as left by a writer whose buffer
// was sent in parts.
func cut(typ byte, begins ...[]byte) []byte {
	whole := wiretest.Msg(typ, append(begins, make([]byte, 100<<10))...)
	return whole[:len(whole)-50<<10]
}

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

// manyRows returns more data than sockets can buffer.
const manyRows = "SELECT repeat('x', 1000) FROM generate_series(1, 50000)"

// stalls are the ways to stop, named by what the connection is in the middle of.
var stalls = map[string]func(c *stalledCase){
	"at rest":                     func(*stalledCase) {},
	"in a transaction":            func(c *stalledCase) { c.query(c.leader, "BEGIN; INSERT INTO work VALUES ('stalled')") },
	"half a Query":                sends(half(wiretest.Query("INSERT INTO work VALUES ('stalled')"))),
	"half a Bind":                 sends(join(wiretest.Parse("", "INSERT INTO work VALUES ($1)"), cut('B', []byte("\x00\x00")))),
	"a batch without Sync":        sends(wiretest.Run("INSERT INTO work VALUES ('stalled')")),
	"a batch and a Flush":         sends(join(wiretest.Run("INSERT INTO work VALUES ('stalled')"), wiretest.Flush())),
	"more than may be owed":       func(c *stalledCase) { c.floods(slices.Repeat(wiretest.Close('S', "none"), 60000)) },
	"a Query, unread":             sends(wiretest.Query(manyRows)),
	"COPY out, unread":            sends(wiretest.Query("COPY (" + manyRows + ") TO STDOUT")),
	"COPY in, half of the data":   copies(cut('d')),
	"COPY in of a batch, no Sync": sends(join(wiretest.Run("COPY work FROM STDIN"), wiretest.CopyData("stalled\n"), wiretest.CopyDone())),
	"a start of another":          func(c *stalledCase) { wiretest.Dial(c.t, c.one.Address).Send(half(wiretest.Startup(c.params()...))) },
	"another that waits to lead":  func(c *stalledCase) { c.again("fencepost.campaign", "wait") },
	"a lock of its own": func(c *stalledCase) {
		c.query(c.leader, "BEGIN; INSERT INTO taken VALUES ('"+c.resource+"')")
		c.waits(c.again("fencepost.campaign", "wait"), "INSERT INTO taken VALUES ('"+c.resource+"')")
	},
	"its own, behind a stranger": func(c *stalledCase) {
		c.query(c.leader, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
		stranger, _ := wiretest.Connect(c.t, c.pg.Addr(), "user", pgtest.App, "database", c.db)
		c.query(stranger, "SELECT pg_advisory_lock(hashtext('"+c.resource+" too'))")
		c.waits(stranger, "SELECT pg_advisory_lock(hashtext('"+c.resource+"')) -- stranger")
		c.waits(c.again("fencepost.campaign", "wait"), "SELECT pg_advisory_lock(hashtext('"+c.resource+" too')) -- worker")
	},
	"a lock of its other resource": func(c *stalledCase) {
		other := c.again("fencepost.resource", c.resource+" too")
		c.query(other, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
		c.waits(c.leader, "SELECT pg_advisory_lock(hashtext('"+c.resource+"'))")
	},
}

// sends stalls after these bytes.
func sends(bytes []byte) func(*stalledCase) {
	return func(c *stalledCase) { c.leader.Send(bytes) }
}

// copies stalls within COPY data.
func copies(bytes []byte) func(*stalledCase) {
	return func(c *stalledCase) {
		c.leader.Send(wiretest.Query("COPY work FROM STDIN"))
		c.leader.Until('G')
		c.leader.Send(bytes)
	}
}

// floods sends until the peer has accepted nothing for a while.
func (c *stalledCase) floods(bytes []byte) {
	for len(bytes) > 0 {
		_ = c.leader.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := c.leader.Write(bytes)
		if bytes = bytes[n:]; err != nil {
			return
		}
	}
}

// TestStalledLeaderIsReplaced checks that a leader that stops is replaced after the worker
// timeout, long before its lease would expire, whatever its connections were in the middle of.
func TestStalledLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "LEASE_GRACE="+stalledGrace.String()))
	h.pg.Exec(t, pgtest.App, h.db, "CREATE TABLE taken (name text PRIMARY KEY)")
	s := newStalls(h, h.proxy(), h.proxy())
	for name, stall := range stalls {
		s.begin(name, func(c *stalledCase) {
			c.leader = c.again("fencepost.campaign", "wait")
			stall(c)
		})
	}
	s.wg.Wait()
}

// TestStalledLeaderUnderTLSIsReplaced covers an idle connection and one with a partly
// sent message.
func TestStalledLeaderUnderTLSIsReplaced(t *testing.T) {
	t.Parallel()
	own := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Hosts: []string{"127.0.0.1"}})
	h := newCluster(t, "postgres", with(long, "LEASE_GRACE="+stalledGrace.String()))
	s := newStalls(h, h.proxy("TLS_MODE=allow", "TLS_CERT_FILE="+own.CertFile, "TLS_KEY_FILE="+own.KeyFile), h.proxy())
	for _, name := range []string{"at rest", "half a Bind", "COPY out, unread"} {
		s.begin(name, func(c *stalledCase) {
			c.leader = wiretest.Dial(t, c.one.Address)
			c.leader.Secure(&tls.Config{InsecureSkipVerify: true}, false)
			c.leader.Send(wiretest.Startup(c.params("fencepost.campaign", "wait")...))
			c.leader.Until('Z')
			stalls[name](c)
		})
	}
	s.wg.Wait()
}

// stallsAtOnce limits the number of concurrent cases.
const stallsAtOnce = 8

// stallRun is a run of cases, several at a time, because they mostly wait.
type stallRun struct {
	*cluster
	one, two *process.Server
	slots    chan struct{}
	wg       sync.WaitGroup
}

func newStalls(h *cluster, one, two *process.Server) *stallRun {
	return &stallRun{cluster: h, one: one, two: two, slots: make(chan struct{}, stallsAtOnce)}
}

// begin lets a leader stall, and waits in the background until it is replaced.
func (s *stallRun) begin(name string, stall func(c *stalledCase)) {
	s.t.Helper()
	s.slots <- struct{}{}
	c := &stalledCase{cluster: s.cluster, one: s.one, two: s.two, resource: name, timeout: stalledTimeout}
	done := false
	defer func() {
		if !done {
			s.t.Logf("this was: %s", name)
		}
	}()
	stall(c)
	done = true
	s.wg.Go(func() {
		defer func() { <-s.slots }()
		if _, err := s.tryJoin(process.Patience, c.two, "successor", "resource", name, "campaign", "wait"); err != nil {
			s.t.Errorf("%s: not replaced: %v", name, err)
		}
	})
}
