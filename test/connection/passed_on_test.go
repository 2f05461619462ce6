//go:build linux && !fencepost_plainnet

package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/unixsocket"
	"github.com/fencepost/fencepost/proxy/wire"
)

// allowed lets every connection without a resource write.
var allowed = fixture.WithPolicy(proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow})

// passage passes sessions to another proxy of this process, as package upgrade does to that of another one.
type passage struct {
	to       *proxy.Server
	refused  error        // of each session, if not nil
	uncommit func() error // called before a commit, which its error prevents; may be nil
	broken   error        // the result of Broken
	accepted []*proxy.Arrival
}

func passTo(p *fixture.Proxy) *passage { return &passage{to: p.Server} }

func (p *passage) Offer(_ context.Context, state []byte, client, server int) error {
	if p.refused != nil {
		return p.refused
	}
	var conns [2]net.Conn
	for i, fd := range []int{client, server} {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(copied), "session")
		conns[i], err = net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return err
		}
		if local, ok := conns[i].(*net.UnixConn); ok && i == 0 {
			conns[i] = unixsocket.WithPeer(local)
		}
	}
	arrival, err := p.to.TakeOver(state, conns[0], conns[1])
	if err == nil {
		p.accepted = append(p.accepted, arrival)
	}
	return err
}

func (p *passage) Broken() error { return p.broken }

func (p *passage) Commit() error {
	if p.uncommit != nil {
		if err := p.uncommit(); err != nil {
			return err
		}
	}
	for _, a := range slices.Backward(p.accepted) {
		a.Begin()
	}
	p.accepted = nil
	return nil
}

func (p *passage) Drop() {
	for _, a := range p.accepted {
		a.Drop()
	}
	p.accepted = nil
}

// passOn has p pass its sessions on. The function that it returns waits for the end, which is that of p's last session.
func passOn(t testing.TB, p *fixture.Proxy, to proxy.Passage) (end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), fixture.Patience)
	done := make(chan error, 1)
	go func() { _, err := p.Server.PassOn(ctx, to); done <- err }()
	return sync.OnceFunc(func() {
		t.Helper()
		defer cancel()
		if err := <-done; err != nil {
			t.Errorf("pass on: %v; left: %+v", err, p.Server.Connections())
		}
	})
}

// listed are the clients of p that have a session. Others may have sent a cancel request.
func listed(p *fixture.Proxy) []proxy.Connection {
	return slices.DeleteFunc(p.Server.Connections(), func(c proxy.Connection) bool { return c.Session == "" })
}

// TestASessionIsPassedOn: its client sees nothing of it, over TCP and Unix sockets, behind a load balancer, and a
// second time. Its backend goes on with what it has, its cancel key is good at the new process, and lists show the same
// session.
func TestASessionIsPassedOn(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	for name, c := range map[string]struct {
		change func(*proxy.Config)
		header string
		local  bool
	}{
		"TCP": {change: allowed}, "a Unix socket": {change: allowed, local: true},
		"a Unix socket of Postgres": {change: func(cfg *proxy.Config) {
			allowed(cfg)
			cfg.Upstream = fixture.At(t, filepath.Join(pg.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", pg.Port())), nil)
		}},
		"a load balancer": {change: func(cfg *proxy.Config) { allowed(cfg); behind(cfg) }, header: header1},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			var all [3]*fixture.Proxy
			for i := range all {
				all[i] = fixture.NewProxy(t, pg, c.change)
			}
			db := pg.Database(t)
			admin := pg.Connect(t, pgtest.Superuser, db)
			address := all[0].Addr
			if c.local {
				address = alsoAt(t, all[0])
			}
			conn := wiretest.Dial(t, address)
			conn.Send([]byte(c.header), wiretest.Startup("user", pgtest.App, "database", db, "application_name", "first"))
			var key []byte
			for _, m := range conn.Until('Z') {
				if m.Type == 'K' {
					key = m.Body
				}
			}
			fixture.MustPassEach(t, conn, "create temp table kept as select 7 as n", "prepare p as select n from kept", "listen news", "set work_mem = '7MB'",
				"set application_name = 'second'", "set default_transaction_read_only = on")
			before := listed(all[0])
			for i, next := range all[1:] {
				passOn(t, all[i], passTo(next))()
				after := listed(next)
				if len(before) != 1 || len(after) != 1 {
					t.Fatalf("the lists: %+v, %+v", before, after)
				}
				if n := len(all[i].Server.Connections()); n != 0 {
					t.Errorf("%d sessions are left at the old process", n)
				}
				if after[0].Sent < before[0].Sent {
					t.Errorf("it has sent %d bytes, and before %d", after[0].Sent, before[0].Sent)
				}
				before[0].Sent = after[0].Sent // which is counted when the client may have it already
				if b, a := fmt.Sprintf("%+v", before[0]), fmt.Sprintf("%+v", after[0]); a != b {
					t.Errorf("the session was %s, and is now %s", b, a)
				}
				if _, err := admin.Exec(t.Context(), "notify news, 'come'"); err != nil {
					t.Fatal(err)
				}
				if m := conn.Until('A'); !strings.Contains(m[len(m)-1].String(), "come") {
					t.Errorf("the notification: %v", m)
				}
				if got := fixture.FirstValue(t, conn.Exec("execute p")); got != "7" {
					t.Errorf("what was prepared before returns %s", got)
				}
				if got := fixture.FirstValue(t, conn.Exec("show work_mem")); got != "7MB" {
					t.Errorf("what was set before is %s", got)
				}
				conn.Send(Q("select pg_sleep(600)"))
				fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
				if c.header == "" {
					cancelWith(t, next.Addr, key)
				} else {
					next.Server.Cancel(t.Context(), uint32(key[0])<<24|uint32(key[1])<<16|uint32(key[2])<<8|uint32(key[3]), key[4:])
				}
				if all := conn.Until('Z'); wiretest.ErrorOf(all) != "57014" {
					t.Errorf("after a cancel request: %v", all)
				}
				if traffic := next.Server.Traffic()[db]; traffic.Transactions != 3 {
					t.Errorf("the new process has counted %+v", traffic)
				}
				before = listed(next)
			}
			// The proxy passes each change of this parameter on once.
			if got := fixture.Lines(conn.Exec("set default_transaction_read_only = off")); !strings.Contains(strings.Join(got, " "), `default_transaction_read_only`) {
				t.Errorf("a parameter that changes is not reported: %v", got)
			}
			conn.Send(wiretest.Terminate())
			fixture.Eventually(t, "the session to end", func() bool { return all[2].Server.Clients() == 0 })
		})
	}
}

// TestOnlyAtRest: what is under way is finished at the old process first.
func TestOnlyAtRest(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	split := func(message []byte) (first, second []byte) { return message[:len(message)-3], message[len(message)-3:] }
	half, otherHalf := split(Q("select 'whole'"))
	data, moreData := split(wiretest.CopyData("1111111\n"))
	for name, c := range map[string]struct{ before, after []byte }{
		"a transaction":           {Q("begin; insert into t values (1)"), Q("commit")},
		"a failed transaction":    {Cat(Q("begin"), Q("fail")), Q("rollback")},
		"a batch":                 {wiretest.Run("select 1"), wiretest.Sync()},
		"a failed batch":          {Cat(wiretest.Run("fail"), wiretest.Flush()), wiretest.Sync()},
		"a part of a message":     {half, otherHalf},
		"COPY":                    {Cat(Q("copy t from stdin"), data), Cat(moreData, wiretest.CopyDone())},
		"a failed COPY":           {Cat(Q("copy t from stdin"), wiretest.CopyData("no number\n"), data), moreData}, // to which there is no reply
		"a COPY that was refused": {Cat(Q("copy missing from stdin"), data), moreData},                             // to which there is no reply
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			old, next, db := fixture.NewProxy(t, pg, allowed), fixture.NewProxy(t, pg, allowed), pg.Database(t)
			conn, _ := wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", db)
			idle, _ := wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", db)
			fixture.MustExec(t, conn, "create table t (n int)")
			sent := old.Server.Connections()[0].Received
			conn.Send(c.before)
			fixture.Eventually(t, "the proxy to have read that", func() bool {
				return old.Server.Connections()[0].Received == sent+uint64(len(c.before))
			})
			end := passOn(t, old, passTo(next))
			fixture.Eventually(t, "the idle session to be passed on", func() bool { return next.Server.Clients() == 1 })
			fixture.MustExec(t, idle, "select 1")
			if n := old.Server.Clients(); n != 1 {
				t.Errorf("the old process has %d sessions, with one that is not at rest", n)
			}
			conn.Send(c.after)
			end()
			if n := next.Server.Clients(); n != 2 {
				t.Errorf("the new process has %d sessions", n)
			}
			conn.Send(Q("select 'the end'"))
			for m := conn.Until('Z'); !strings.Contains(fmt.Sprint(m), "the end"); m = conn.Until('Z') {
				if strings.Contains(fmt.Sprint(m), "FATAL") {
					t.Fatal(m)
				}
			}
		})
	}
}

// TestALongReply: sessions whose clients have not read the end of a reply are passed on when these have, and say
// nothing more.
func TestALongReply(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	old, next, db := fixture.NewProxy(t, pg, allowed), fixture.NewProxy(t, pg, allowed), pg.Database(t)
	var conns [20]*wiretest.Conn
	for i := range conns {
		conns[i], _ = wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", db)
		conns[i].Send(Q("select repeat('x', 10000000)"))
	}
	end := passOn(t, old, passTo(next))
	for _, c := range conns {
		if got := fixture.FirstValue(t, c.Until('Z')); len(got) != 10_000_000 {
			t.Errorf("a reply has %d bytes", len(got))
		}
	}
	end()
	for _, c := range conns {
		fixture.MustExec(t, c, "select 1")
	}
}

// TestAPartOfANotification: a message of the server's has arrived in part, up to whichever byte, when the session is to
// be passed on.
func TestAPartOfANotification(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	for _, part := range []int{1, 4, 5, 12} {
		var hold atomic.Bool
		come := make(chan struct{}, 1)
		relay := fixture.NewRelay(t, "tcp", pg.Addr(), func() fixture.Passing {
			var held []byte
			return fixture.Passing{ToClient: func(b []byte) []byte {
				if b[0] != 'A' || !hold.CompareAndSwap(true, false) {
					b = append(held, b...)
					held = nil
					return b
				}
				held = append(held, b[part:]...)
				come <- struct{}{}
				return b[:part]
			}}
		})
		change := func(cfg *proxy.Config) { allowed(cfg); cfg.Upstream = fixture.At(t, relay.Addr, nil) }
		old, next, db := fixture.NewProxy(t, pg, change), fixture.NewProxy(t, pg, change), pg.Database(t)
		conn, _ := wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", db)
		idle, _ := wiretest.Connect(t, old.Addr, "user", pgtest.App, "database", db)
		fixture.MustExec(t, conn, "listen news")
		admin := pg.Connect(t, pgtest.Superuser, db)
		notify := func(payload string) {
			t.Helper()
			if _, err := admin.Exec(t.Context(), "select pg_notify('news', $1)", payload); err != nil {
				t.Fatal(err)
			}
		}
		before := old.Server.Connections()[0].Sent
		hold.Store(true)
		notify("one")
		<-come
		shown := part >= wire.HeaderLen // the proxy sends the client what there is of such a message
		if shown {
			fixture.Eventually(t, "the part to have passed", func() bool { return old.Server.Connections()[0].Sent > before })
		}
		end := passOn(t, old, passTo(next))
		fixture.Eventually(t, "the idle session to be passed on", func() bool { return next.Server.Clients() >= 1 })
		fixture.MustExec(t, idle, "select 1")
		if n := old.Server.Clients(); shown && n != 1 { // else the part may still be on its way
			t.Errorf("after %d bytes of a message, the old process has %d sessions", part, n)
		}
		notify("two")
		end()
		if n := next.Server.Clients(); n != 2 {
			t.Errorf("the new process has %d sessions", n)
		}
		conn.Send(Q("notify news, 'three'"))
		if got := fixture.Types(conn.Until('Z')); got != "AACAZ" && got != "AAACZ" {
			t.Errorf("the client got %s", got)
		}
	}
}

// TestPassedOnUnderLoad: sessions are passed on from process to process while their clients work. Each client gets each
// answer once, and in its place.
func TestPassedOnUnderLoad(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	var all [6]*fixture.Proxy
	for i := range all {
		all[i] = fixture.NewProxy(t, pg, allowed)
	}
	db := pg.Database(t)
	admin := pg.Connect(t, pgtest.Superuser, db)
	if _, err := admin.Exec(t.Context(), "create table t (client int, n int); grant all on t to app"); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	var working sync.WaitGroup
	var rounds [6]atomic.Int64
	work := func(i int, round func(c *wiretest.Conn, n int)) {
		c, _ := wiretest.Connect(t, all[0].Addr, "user", pgtest.App, "database", db)
		round(c, 0)
		rounds[i].Add(1)
		working.Go(func() {
			for n := 1; !over.Load() && !t.Failed(); n++ {
				round(c, n)
				rounds[i].Add(1)
			}
			c.Send(wiretest.Terminate())
		})
	}
	want := func(c *wiretest.Conn, value string) {
		if got := fixture.FirstValue(t, c.Until('Z')); got != value {
			t.Errorf("the answer is %.50q, want %.50q", got, value)
		}
	}
	inserts := func(i int) func(c *wiretest.Conn, n int) {
		return func(c *wiretest.Conn, n int) {
			c.Send(Q(fmt.Sprintf("insert into t values (%d, %d) returning n", i, n)))
			want(c, fmt.Sprint(n))
		}
	}
	work(0, inserts(0))
	work(1, func(c *wiretest.Conn, n int) { // a transaction
		c.Send(Q("begin"))
		c.Until('Z')
		inserts(1)(c, n)
		c.Send(Q("commit"))
		c.Until('Z')
	})
	work(2, func(c *wiretest.Conn, n int) { // many messages at once, with a prepared statement
		if n == 0 {
			fixture.MustExec(t, c, "prepare p as select $1::int")
		}
		var at []byte
		for k := range 20 {
			at = append(at, Cat(wiretest.Parse("", "execute p("+fmt.Sprint(20*n+k)+")"), wiretest.Bind("", ""), wiretest.Describe('P', ""), wiretest.Execute("", 0), wiretest.Sync())...)
		}
		go c.Send(at[:len(at)/2+1], at[len(at)/2+1:])
		for k := range 20 {
			want(c, fmt.Sprint(20*n+k))
		}
	})
	large := strings.Repeat("x", 300_000)
	work(3, func(c *wiretest.Conn, n int) { // a long message in both directions
		c.Send(Q("select '" + large + "'"))
		want(c, large)
	})
	work(4, func(c *wiretest.Conn, n int) { // a COPY
		c.Send(Q("copy t from stdin"))
		c.Until('G')
		for k := range 10 {
			c.Send(wiretest.CopyData(fmt.Sprintf("4\t%d\n", 10*n+k)))
		}
		c.Send(wiretest.CopyDone())
		c.Until('Z')
	})
	work(5, func(c *wiretest.Conn, n int) { // a listener, which also gets what others send
		if n == 0 {
			fixture.MustExec(t, c, "listen news")
			return
		}
		if m := c.Until('A'); !strings.Contains(m[0].String(), fmt.Sprintf("news\\x00%d\\x00", n)) {
			t.Errorf("notification %d: %v", n, m)
		}
	})
	notified := 0
	for i := range len(all) - 1 {
		var before [6]int64
		for k := range rounds {
			before[k] = rounds[k].Load()
		}
		end := passOn(t, all[i], passTo(all[i+1]))
		for moved := false; !moved || notified == 0; {
			notified++
			if _, err := admin.Exec(t.Context(), "select pg_notify('news', $1)", fmt.Sprint(notified)); err != nil {
				t.Fatal(err)
			}
			moved = t.Failed() || all[i].Server.Clients() == 0
			for k := range rounds {
				moved = moved && (t.Failed() || rounds[k].Load() > before[k]+5)
			}
		}
		end()
	}
	over.Store(true)
	notified++
	if _, err := admin.Exec(t.Context(), "select pg_notify('news', $1)", fmt.Sprint(notified)); err != nil {
		t.Fatal(err)
	}
	working.Wait()
	for i, each := range map[int]int64{0: 1, 1: 1, 4: 10} {
		var n, distinct int64
		if err := admin.QueryRow(t.Context(), "select count(*), count(distinct n) from t where client = $1", i).Scan(&n, &distinct); err != nil {
			t.Fatal(err)
		}
		if rows := each * rounds[i].Load(); n != rows || distinct != rows {
			t.Errorf("client %d has %d rows, %d different ones, want %d", i, n, distinct, rows)
		}
	}
}

// TestPassingIsRefused: a session that the new process does not take, or that is of another kind, ends as without one.
func TestPassingIsRefused(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	authority := pgtest.NewAuthority(t)
	pair := authority.Issue(t, pgtest.Subject{Name: "fencepost"})
	required, err := pgtls.NewClients(pgtls.ClientsConfig{CertFile: pair.CertFile, KeyFile: pair.KeyFile, Require: true})
	if err != nil {
		t.Fatal(err)
	}
	routed := func(name string) func(*proxy.Config) {
		return func(cfg *proxy.Config) {
			cfg.Policy = func(r fencing.JoinRequest) proxy.SessionPolicy {
				p := proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow}
				if r.ApplicationName == name {
					p.Route = proxy.Route{Name: "routes[0]", Resource: "r"}
				}
				return p
			}
		}
	}
	for name, c := range map[string]struct {
		old, next func(*proxy.Config)
		params    []string
		leads     bool
		refused   error
	}{
		"an error":               {refused: errors.New("for this reason")},
		"read-only now":          {next: fixture.WithPolicy(proxy.SessionPolicy{})},
		"refused now":            {next: fixture.WithPolicy(proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse})},
		"routed now":             {next: routed("starts")},
		"routed by a later name": {next: routed("later")},
		"the control role now":   {next: func(cfg *proxy.Config) { cfg.ControlUser, cfg.MaxConnections = pgtest.App, 1 }},
		"TLS is required now":    {next: func(cfg *proxy.Config) { cfg.TLS = required }},
		"another server now": {next: func(cfg *proxy.Config) {
			cfg.Upstream = fixture.At(t, filepath.Join(pg.SocketDir(), fmt.Sprintf(".s.PGSQL.%d", pg.Port())), nil)
		}},
		"no connection left":               {next: func(cfg *proxy.Config) { cfg.MaxConnections = 1 }},
		"read-only":                        {old: fixture.WithPolicy(proxy.SessionPolicy{})},
		"a follower":                       {params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}},
		"a leader in shadow now":           {next: fixture.WithPolicy(proxy.SessionPolicy{Shadow: true}), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}, leads: true},
		"a leader that discards now":       {next: fixture.WithPolicy(proxy.SessionPolicy{OnStale: proxy.DiscardStale}), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}, leads: true},
		"a leader that discards":           {old: fixture.WithPolicy(proxy.SessionPolicy{OnStale: proxy.DiscardStale}), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}, leads: true},
		"a leader with guarded tables now": {next: fixture.WithPolicy(proxy.SessionPolicy{Fence: proxy.FenceTables}), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}, leads: true},
		"a leader that is refused now":     {next: fixture.WithPolicy(proxy.SessionPolicy{Refusal: fencing.RetiredRefusal}), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}, leads: true},
		"an error of a leader":             {refused: errors.New("for this reason"), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}, leads: true},
		"a resource in shadow":             {old: fixture.WithPolicy(proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow, Shadow: true}), params: []string{"fencepost.resource", "r", "fencepost.worker", "w"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			build := func(change func(*proxy.Config)) *fixture.Proxy {
				return fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
					cfg.StartupWait = time.Millisecond
					if allowed(cfg); change != nil {
						change(cfg)
					}
				})
			}
			old, next, db := build(c.old), build(c.next), pg.Database(t)
			if c.leads {
				old.Elector.Enter(db, "r", "w").Grant()
			}
			conn, _ := wiretest.Connect(t, old.Addr, append([]string{"user", pgtest.App, "database", db, "application_name", "starts"}, c.params...)...)
			fixture.MustExec(t, conn, "set application_name = 'later'")
			clients := 0
			if name == "no connection left" {
				wiretest.Connect(t, next.Addr, "user", pgtest.Superuser, "database", db)
				clients = 1
			}
			end := passOn(t, old, &passage{to: next.Server, refused: c.refused, uncommit: func() error {
				t.Error("the session was passed on")
				return errors.New("it must not be")
			}})
			if f := fixture.FatalError(t, conn.Rest()); f['C'] != "57P01" {
				t.Errorf("the client gets %v", f)
			}
			_ = conn.Close()
			end()
			if n := next.Server.Clients(); n != clients {
				t.Errorf("the new process has %d clients, want %d", n, clients)
			}
			if name == "the control role now" { // and room for one
				wiretest.Connect(t, next.Addr, "user", pgtest.Superuser, "database", db)
			}
		})
	}
}
