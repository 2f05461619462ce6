package system

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
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
		}
		at := time.Now()
		if successor != nil {
			successor.leave() // before the end of the test leaves it
		}
		done <- outcome{at, err}
	}()
	c.awaitWorker(c.two, c.resource, "successor")
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
	for _, provider := range []string{"consul", "raft"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			h, find := losable[provider](t, with("LEASE_TTL=60s"))
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
					case <-time.After(10 * time.Millisecond): // the takeover needs the processors more
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
