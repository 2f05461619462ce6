package connection

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// stallingServer stands in front of a Postgres, and says nothing more to a
// client once it has passed on a message of type after: 0 for nothing at all, as
// always under TLS.
type stallingServer struct {
	addr  string
	after byte
	tls   bool
	wg    sync.WaitGroup
}

func newStallingServer(t *testing.T, pg *pgtest.Server, after byte, tls bool) *stallingServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &stallingServer{addr: ln.Addr().String(), after: after, tls: tls}
	s.wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() { s.serve(client, pg.Addr()) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); s.wg.Wait() })
	return s
}

// serve ends when the client does.
func (s *stallingServer) serve(client net.Conn, address string) {
	defer client.Close()
	if s.tls {
		_, _ = io.Copy(io.Discard, client)
		return
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.answer(client, server) })
	_, _ = io.Copy(server, struct{ io.Reader }{client}) // not by splice, which keeps pipes
	_ = server.Close()
	wg.Wait()
}

// answer passes messages on up to the last one.
func (s *stallingServer) answer(client io.Writer, server io.Reader) {
	for typ := byte(0); s.after != 0 && typ != s.after; {
		var head [5]byte
		if _, err := io.ReadFull(server, head[:]); err != nil {
			return
		}
		typ = head[0]
		_, _ = client.Write(head[:])
		_, _ = io.CopyN(client, server, int64(binary.BigEndian.Uint32(head[1:]))-4)
	}
	_, _ = io.Copy(io.Discard, server)
}

// unreachable is an address where connecting hangs: nobody accepts, and the
// queue of those who wait for it is full.
func unreachable(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(at.(*unix.SockaddrInet4).Port))
	for {
		conn, err := net.DialTimeout("tcp", address, 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// stalledProxies are proxies with all kinds of such servers.
func stalledProxies(t *testing.T, timeout time.Duration) map[string]*fixture.Proxy {
	t.Helper()
	pg, all := pgtest.Shared(t), map[string]*fixture.Proxy{}
	for name, server := range map[string]struct {
		address string
		tls     bool
	}{
		"nobody accepts":               {unreachable(t), false},
		"no answer to an SSLRequest":   {newStallingServer(t, pg, 0, true).addr, true},
		"nothing after authentication": {newStallingServer(t, pg, 'R', false).addr, false},
		"no answer to the checks":      {newStallingServer(t, pg, 'Z', false).addr, false},
	} {
		all[name] = fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
			var side *pgtls.Upstream
			if server.tls {
				var err error
				if side, err = pgtls.NewUpstream(pgtls.UpstreamConfig{}); err != nil {
					t.Fatal(err)
				}
			}
			cfg.Upstream, cfg.StartupTimeout, cfg.DialTimeout = fixture.At(t, server.address, side), timeout, time.Hour
		})
	}
	return all
}

// heldResources counts what a process holds.
func heldResources(t *testing.T) (goroutines, descriptors int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return runtime.NumGoroutine(), len(entries)
}

// TestStalledServerKeepsNoOne: clients of a server that does not answer are told so
// at the startup timeout, and when they go away nothing of them is left, long before it.
// It is not parallel: it counts what the process holds.
func TestStalledServerKeepsNoOne(t *testing.T) {
	// Ten clients of one kind would hold twice as much as the fence's own
	// connections, which are made meanwhile.
	const clients, spare = 10, 14
	db := pgtest.Shared(t).Database(t)
	for what, timeout := range map[string]time.Duration{"told": 5 * time.Second, "gone": time.Hour} {
		t.Run(what, func(t *testing.T) {
			proxies := stalledProxies(t, timeout)
			round := func(n int) {
				begun, conns := time.Now(), map[*wiretest.Conn]string{}
				for name, p := range proxies {
					for range n {
						c := wiretest.Dial(t, p.Addr)
						c.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w"))
						conns[c] = name
					}
				}
				for c, name := range conns {
					if what == "told" {
						if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P03" || time.Since(begun) < timeout {
							t.Errorf("%s: told %v after %s, want 57P03 at the timeout", name, f, time.Since(begun))
						}
					}
					_ = c.Close()
				}
			}
			round(1)
			goroutines, descriptors := heldResources(t)
			round(clients)
			fixture.Eventually(t, "nothing of the clients to be left", func() bool {
				g, d := heldResources(t)
				return g <= goroutines+spare && d <= descriptors+spare
			})
		})
	}
}

// TestStartupThatWaitsEndsWithItsClient: a client that waits to lead, and has
// said more already, is no member any more at once when it goes.
func TestStartupThatWaitsEndsWithItsClient(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	fixture.LeaderConn(t, p, db)
	for name, more := range map[string][]byte{"silent": nil, "hasty": Q("select 1")} {
		c := wiretest.Dial(t, p.Addr)
		c.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", name, "fencepost.campaign", "wait"), more)
		fixture.Eventually(t, "the client to wait", func() bool { return p.Elector.Members(db, "r", name) == 1 })
		_ = c.Close()
		fixture.Eventually(t, "the client to be gone", func() bool { return p.Elector.Members(db, "r", name) == 0 })
	}
}

// TestClientsMayEndTheirSideFirst: one that says all it has to say at once, and
// ends its side, gets its answers.
func TestClientsMayEndTheirSideFirst(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	c := wiretest.Dial(t, p.Addr)
	c.Send(wiretest.Startup("user", pgtest.App, "database", p.PG.Database(t)), Q("select pg_sleep(1.5), 7"))
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if all := c.Rest(); strings.Count(fixture.Types(all), "D") != 1 {
		t.Errorf("the client was answered %v", all)
	}
}

// TestCancelOfAStoppedServerEnds, although its client waits for it.
func TestCancelOfAStoppedServerEnds(t *testing.T) {
	t.Parallel()
	pg := pgtest.Start(t)
	p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) { cfg.DialTimeout = 2 * time.Second })
	_, key := keyed(t, p.Addr, "user", pgtest.App, "database", pg.Database(t))
	pg.Freeze(t)
	defer pg.Thaw(t)
	cancelWith(t, p.Addr, key)
}

// TestAFenceThatDoesNotAnswerInTime: somebody holds a lock that those wait for who connect, or who are to be registered
// in their session. They and the log get to know that, and not that Postgres does not answer.
func TestAFenceThatDoesNotAnswerInTime(t *testing.T) {
	t.Parallel()
	const text = "the tables of the fence did not answer in time"
	core, logs := observer.New(zap.WarnLevel)
	p := fixture.NewProxy(t, pgtest.Shared(t), func(cfg *proxy.Config) {
		cfg.StartupTimeout, cfg.Logger = 2*time.Second, zap.New(core)
	})
	db := p.PG.Database(t)
	of := func(resource string) []string {
		return []string{"user", pgtest.App, "database", db, "fencepost.resource", resource, "fencepost.worker", "w"}
	}
	fixture.LeaderConn(t, p, db)
	learns, _ := wiretest.Connect(t, p.Addr, of("later")...)
	p.Elector.Candidacy(db, "later", "w").Grant()
	if code := wiretest.ErrorOf(learns.Exec("show fencepost.role")); code != "" {
		t.Fatal(code)
	}
	tx, err := p.PG.Connect(t, pgtest.Superuser, db).Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "LOCK fencepost.running; SELECT FROM fencepost.fence FOR UPDATE")
	}
	if err != nil {
		t.Fatal(err)
	}
	for who, params := range map[string][]string{"of a leader": of("r"), "of a new resource": of("new")} {
		late := wiretest.Dial(t, p.Addr)
		late.Send(wiretest.Startup(params...))
		said := late.Rest()
		if last := said[len(said)-1]; last.Type != 'E' || last.Fields()['C'] != "57P03" || !strings.Contains(last.Fields()['M'], text) {
			t.Errorf("the client %s is told %v", who, last)
		}
	}
	fixture.Eventually(t, "the log of the refusals", func() bool {
		all := logs.FilterMessage("connection refused").All()
		return len(all) == 1 && all[0].ContextMap()["reason"] == "fence"
	})
	fixture.MustFail(t, learns, fencing.StateNoFence, Q("create temporary table written ()"))
	fixture.Eventually(t, "a warning", func() bool { return logs.FilterMessage(text).Len() == 1 })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, _ := wiretest.Connect(t, p.Addr, of("r")...)
	for who, c := range map[string]*wiretest.Conn{"a leader": conn, "one that was not registered": learns} {
		if code := wiretest.ErrorOf(c.Exec("create temporary table written ()")); code != "" {
			t.Errorf("after that, %s gets %s", who, code)
		}
	}
}

// TestAWaiterThatIsOvertaken between its grant and its registration: its client is told by which epoch.
func TestAWaiterThatIsOvertaken(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	first, second := p.Elector.Enter(db, "r", "first"), p.Elector.Enter(db, "r", "second")
	first.Grant()
	leads := first.Status()
	first.SetStatus(&fencing.Status{Role: fencing.Follower})
	c := wiretest.Dial(t, p.Addr)
	c.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "first", "fencepost.campaign", "wait"))
	fixture.Eventually(t, "the client to wait", func() bool {
		all := p.Server.Connections()
		return len(all) == 1 && all[0].State == "waiting for the lead"
	})
	second.Grant()
	first.SetStatus(leads)
	said := c.Rest()
	last := said[len(said)-1].Fields()
	if last['C'] != fencing.StateSuperseded || !strings.Contains(last['M'], `its epoch 1 is below the current epoch 2 of worker second`) {
		t.Errorf("the client is told %v", last)
	}
}
