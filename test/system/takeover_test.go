package system

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// departures are the ways in which a leader goes. Each returns the moment from which on it does
// not write any more.
var departures = []struct {
	name string
	away func(c *takeoverCase) time.Time
}{
	{"closed", func(c *takeoverCase) time.Time {
		at := time.Now()
		_ = c.leader.PgConn().Conn().Close()
		return at
	}},
	{"frozen", func(c *takeoverCase) time.Time { // in a transaction that it does not end
		c.leader.must("BEGIN", c.insert("leader"))
		return time.Now()
	}},
	{"killed", func(c *takeoverCase) time.Time {
		at := time.Now()
		c.one.Kill(c.t)
		return at
	}},
}

// takeoverCase is one takeover: a leader at one proxy, its successor at the other.
type takeoverCase struct {
	cluster
	one, two *process.Server
	resource string
	timeout  string // of the worker that leads
	leader   *client
}

// BenchmarkTakeover measures how long nobody can write in place of a leader that has gone, until
// the first write of its successor is committed. The successor waits at another proxy. The worker
// timeout is 500 ms, the grace 200 ms, and the TTL 2 s. Each lease service is used by all cases,
// except that one that loses its own leader is started anew for each takeover.
func BenchmarkTakeover(b *testing.B) {
	ttl := with("LEASE_TTL=" + restartTTL.String())
	for _, provider := range allProviders {
		for _, way := range departures {
			b.Run(provider+"/"+way.name, func(b *testing.B) {
				h := newCluster(b, provider, ttl)
				var one, two *process.Server
				reportTakeovers(b, func(i int) time.Duration {
					if one == nil || one.Ended() {
						one = h.proxy()
					}
					if two == nil {
						two = h.proxy()
					}
					c := &takeoverCase{cluster: *h, one: one, two: two, resource: fmt.Sprintf("%s-%d", way.name, i), timeout: "500ms"}
					return c.measure(way.away)
				})
			})
		}
		if start := losable[provider]; start != nil {
			b.Run(provider+"/lost", func(b *testing.B) {
				reportTakeovers(b, func(int) time.Duration {
					s := &scope{TB: b}
					defer s.end()
					h, find := start(s, ttl)
					return newLost(h).measure(lost(find))
				})
			})
		}
	}
}

// reportTakeovers measures a takeover as often as the benchmark says.
func reportTakeovers(b *testing.B, takeover func(i int) time.Duration) {
	b.Helper()
	took := make([]time.Duration, 0, b.N)
	for i := range b.N {
		took = append(took, takeover(i))
	}
	slices.Sort(took)
	b.ReportMetric(milliseconds(took[len(took)/2]), "ms/median")
	b.ReportMetric(milliseconds(took[len(took)-1]), "ms/max")
	b.ReportMetric(0, "ns/op") // the start of servers is in it
}

// scope is a part of a test that ends what it has started.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// newLost returns a takeover for lost. Its leader may be silent while that looks for the server.
func newLost(h *cluster) *takeoverCase {
	return &takeoverCase{cluster: *h, one: h.proxy(), two: h.proxy(), resource: "lost", timeout: "0"}
}

// lost is a departure: the leader disconnects when the server has been killed that leads the lease
// service.
func lost(find func() (kill func())) func(*takeoverCase) time.Time {
	return func(c *takeoverCase) time.Time {
		find()()
		at := time.Now()
		_ = c.leader.PgConn().Conn().Close()
		return at
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// measure plays the takeover.
func (c *takeoverCase) measure(away func(*takeoverCase) time.Time) time.Duration {
	c.t.Helper()
	c.leader = c.join(c.one, "leader", "resource", c.resource, "campaign", "wait", "worker_timeout", c.timeout)
	c.leader.must(c.insert("leader"))
	type outcome struct {
		at  time.Time
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		successor, err := c.tryJoin(process.Patience, c.two, "successor", "resource", c.resource, "campaign", "wait", "worker_timeout", "0")
		if err == nil {
			err = successor.exec(c.insert("successor"))
			defer successor.leave()
		}
		done <- outcome{time.Now(), err}
	}()
	process.Eventually(c.t, process.Patience, "the successor to wait", func() bool {
		_, shown := c.two.Get(c.t, "/v1/resources/"+c.db+"/"+c.resource)
		return strings.Contains(shown, `"worker": "successor"`)
	})
	at := away(c)
	o := <-done
	if o.err != nil {
		c.t.Fatalf("the successor: %v", o.err)
	}
	c.leader.leave()
	return o.at.Sub(at)
}

func (c *takeoverCase) insert(what string) string {
	return fmt.Sprintf("INSERT INTO work VALUES ('%s')", what)
}

// TestTheLeaseServiceLosesItsLeader when a leader disconnects. The successor leads as soon as the
// service has elected another leader, and a leader that is alive writes all the time.
func TestTheLeaseServiceLosesItsLeader(t *testing.T) {
	t.Parallel()
	for provider, start := range losable {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h, find := start(t, with("LEASE_TTL=20s"))
			c := newLost(h)
			stays := c.join(c.one, "stays", "campaign", "wait")
			epoch := stays.show("epoch")
			stop, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				for {
					select {
					case <-stop:
						ended <- nil
						return
					default:
						if err := stays.exec(c.insert("stays")); err != nil {
							ended <- err
							return
						}
					}
				}
			}()
			if took := c.measure(lost(find)); took <= 0 {
				t.Fatalf("the successor wrote %v before the leader disconnected", -took)
			}
			until := c.trusted(c.one)
			process.Eventually(t, process.Patience, "the lease of the leader that stays to be renewed", func() bool { return c.trusted(c.one).After(until.Add(time.Second)) })
			close(stop)
			if err := <-ended; err != nil {
				t.Fatalf("the leader that stays: %v", err)
			}
			if now := stays.show("epoch"); now != epoch {
				t.Errorf("the epoch of the leader that stays went from %s to %s", epoch, now)
			}
		})
	}
}

// trusted returns until when a proxy trusts the lease of its leader.
func (h *cluster) trusted(p *process.Server) time.Time {
	h.t.Helper()
	_, body := p.Get(h.t, "/v1/resources/"+h.db+"/"+resource)
	var shown struct {
		Left float64 `json:"lease_left_seconds"`
	}
	if err := json.Unmarshal([]byte(body), &shown); err != nil {
		h.t.Fatalf("decode %s: %v", body, err)
	}
	return time.Now().Add(time.Duration(shown.Left * float64(time.Second)))
}

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

// TestATakeoverGoesOnSoonAfterWhatBlockedIt: a superuser's transaction keeps the only candidate from an epoch until
// it has given its lease back, and then ends. Nothing is shown as blocked any more, and the candidate leads, long
// before the pause that it makes for the sake of others.
func TestATakeoverGoesOnSoonAfterWhatBlockedIt(t *testing.T) {
	t.Parallel()
	const ttl = 15 * time.Second // the pause is from this to twice this
	h := newCluster(t, "postgres", with("LEASE_TTL="+ttl.String()))
	p := h.proxy()
	leader := h.join(p, "leader", "campaign", "wait")
	dba := h.pg.Connect(t, pgtest.Superuser, h.db)
	for _, sql := range []string{"BEGIN", "SELECT FROM fencepost.fence FOR KEY SHARE"} {
		if _, err := dba.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	leader.leave()
	next := make(chan error, 1)
	go func() {
		_, err := h.tryJoin(3*process.Patience, p, "next", "campaign", "wait")
		next <- err
	}()
	process.Eventually(t, 2*process.Patience, "the takeover to be blocked", func() bool {
		_, body := p.Get(t, "/v1/resources/"+h.db+"/"+resource)
		return strings.Contains(body, fmt.Sprintf("backend %d of role", dba.PgConn().PID()))
	})
	held := func() bool {
		return ask[bool](h, "SELECT vacancy = 'held' FROM fencepost.lease WHERE resource = $1", resource)
	}
	process.Eventually(t, process.Patience, "the lease to be held", held)
	process.Eventually(t, 2*process.Patience, "the lease to be given back", func() bool { return !held() })
	awards := h.awards()
	if err := dba.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended, watch := time.Now(), startWatch(t)
	process.Eventually(t, process.Patience, "nothing to be shown as blocked", func() bool {
		_, body := p.Get(t, "/v1/resources/"+h.db+"/"+resource)
		return !strings.Contains(body, "backend ")
	})
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(ended); watch.late(t, took, ttl*2/3) {
		t.Errorf("the takeover went on %s after what blocked it had ended", took)
	}
	if more := h.awards() - awards; more != 1 {
		t.Errorf("the lease was awarded %d times after what blocked the takeover had ended, want once", more)
	}
}
