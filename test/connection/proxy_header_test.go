package connection

import (
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/proxyheader"
)

// Headers of both versions that name the client 203.0.113.7:51000, and one that names nobody.
const (
	header1     = "PROXY TCP4 203.0.113.7 192.0.2.1 51000 6432\r\n"
	header2     = "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xcb\x00\x71\x07\xc0\x00\x02\x01\xc7\x38\x19\x20"
	headerLocal = "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00"
	named       = "203.0.113.7:51000"
)

// behind has a proxy trust the load balancer at 127.0.0.1, which is every client of these
// tests that says nothing else.
func behind(cfg *proxy.Config) {
	cfg.TrustedProxies = proxyheader.Trusted{netip.MustParsePrefix("127.0.0.1/32")}
}

// refusals counts the connections that a proxy refuses.
type refusals struct {
	mu      sync.Mutex
	reasons []string
}

func (*refusals) Sessions(int) {}

func (*refusals) Shadowed(string, string) {}

func (r *refusals) Refused(reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons = append(r.reasons, reason)
}

func (r *refusals) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.reasons, " ")
}

func TestTheClientsAddressIsThatOfTheHeader(t *testing.T) {
	t.Parallel()
	pg := pgtest.SharedMajor(t, 18)
	core, log := observer.New(zapcore.DebugLevel)
	p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
		behind(cfg)
		cfg.Logger = zap.New(core)
		cfg.Policy = func(fencing.JoinRequest) proxy.SessionPolicy {
			return proxy.SessionPolicy{Identity: proxy.IdentityClientAddress}
		}
	})
	db := pg.Database(t)
	for name, header := range map[string]string{"version 1": header1, "version 2": header2, "LOCAL": headerLocal, "UNKNOWN": "PROXY UNKNOWN\r\n"} {
		c := wiretest.Dial(t, p.Addr)
		// One write: what follows the header must not be taken with it.
		c.Send([]byte(header), wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.campaign", "off"))
		c.Until('Z')
		client := named
		if name == "LOCAL" || name == "UNKNOWN" {
			client = c.LocalAddr().String()
		}
		host, _, _ := net.SplitHostPort(client)
		if p.Elector.Members(db, "r", "client:"+host) != 1 {
			t.Errorf("%s: the connection is not worker client:%s", name, host)
		}
		p.Audit.Forget()
		fixture.MustFail(t, c, fencing.StateNotLeader, wiretest.Query("create table refused ()"))
		fixture.Eventually(t, "the auditor was told", func() bool { return len(p.Audit.All()) == 1 })
		if got := p.Audit.All()[0].Client; got != client {
			t.Errorf("%s: the audit line is about %s, want %s", name, got, client)
		}
		_ = c.Close()
		fixture.Eventually(t, "the session ended", func() bool { return p.Elector.Members(db, "r", "client:"+host) == 0 })
	}
	c := wiretest.Dial(t, p.Addr)
	c.Send([]byte(header2), []byte("\x16\x03\x01\x00\x05")) // TLS, which is off
	c.Rest()
	if lines := log.FilterMessage("connection refused").All(); len(lines) != 1 || lines[0].ContextMap()["client"] != named {
		t.Errorf("the log of a refused client: %v, want one line about %s", lines, named)
	}
}

func TestCancelAndTLSAfterTheHeader(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{major: 18, proxy: behind})
	admin := s.PG.Connect(t, pgtest.Superuser, s.db)
	for header, direct := range map[string]bool{header1: false, header2: true} {
		c := wiretest.Dial(t, s.Addr)
		c.Send([]byte(header))
		c.Secure(s.clientConfig(), direct)
		c.Send(wiretest.Startup("user", pgtest.App, "database", s.db))
		var key []byte
		for _, m := range c.Until('Z') {
			if m.Type == 'K' {
				key = m.Body
			}
		}
		c.Send(Q("select pg_sleep(600)"))
		fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
		canceler := wiretest.Dial(t, s.Addr)
		canceler.Send([]byte(header), packet(codeCancel, key...))
		if said, err := io.ReadAll(canceler); err != nil || len(said) != 0 {
			t.Errorf("a cancel request was answered by %q, %v", said, err)
		}
		if all := c.Until('Z'); wiretest.ErrorOf(all) != "57014" {
			t.Errorf("direct %v: the statement was not canceled: %v", direct, all)
		}
		_ = c.Close()
	}
}

func TestATrustedConnectionWithoutAHeaderIsRefused(t *testing.T) {
	t.Parallel()
	core, log := observer.New(zapcore.DebugLevel)
	counts := &refusals{}
	p := fixture.NewProxy(t, pgtest.Shared(t), func(cfg *proxy.Config) {
		behind(cfg)
		cfg.Logger, cfg.Metrics, cfg.StartupTimeout = zap.New(core), counts, 10*time.Second
	})
	db := p.PG.Database(t)
	startup := wiretest.Startup("user", pgtest.App, "database", db)
	waiting := map[string]*wiretest.Conn{}
	for name, sent := range map[string][]byte{
		"a startup packet": startup, "an SSLRequest": wiretest.SSLRequest(), "another protocol": []byte("GET / HTTP/1.1\r\n\r\n"),
		"a malformed line": []byte("PROXY TCP4 1.2.3.4\r\n"), "part of a header": []byte(header1[:20]), "part of the signature": []byte(header2[:5]),
		"a header that says 64 KB": []byte(header2[:14] + "\xff\xff"), "nothing": nil,
	} {
		c := wiretest.Dial(t, p.Addr)
		c.Send(sent)
		waiting[name] = c
	}
	want := len(waiting)
	for name, c := range waiting {
		all := c.Rest()
		if len(all) != 1 || wiretest.ErrorOf(all) != "08P01" || !strings.Contains(all[0].String(), "no valid PROXY header") || !strings.Contains(all[0].String(), "proxy_protocol.trusted") {
			t.Errorf("%s: %v, want FATAL 08P01 that names the setting", name, all)
		}
	}
	if got := strings.Fields(counts.String()); len(got) != want || strings.Count(counts.String(), "startup") != want {
		t.Errorf("%d refusals were counted as %v", want, got)
	}
	if n := log.FilterMessageSnippet("PROXY header").Len(); n != 1 {
		t.Errorf("%d lines about %d connections at once, want 1", n, want)
	}
	// A health check connects and says nothing: it is neither refused nor logged.
	_ = wiretest.Dial(t, p.Addr).Close()
	c := wiretest.Dial(t, p.Addr)
	c.Send([]byte(header1), startup)
	c.Until('Z')
	if got := strings.Fields(counts.String()); len(got) != want {
		t.Errorf("a connection without a byte was counted: %v", got)
	}
}

// TestAHeaderFromElsewhereIsNone: whoever is not trusted cannot choose an address, and needs
// no header.
func TestAHeaderFromElsewhereIsNone(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, behind), pg.Database(t)
	startup := wiretest.Startup("user", pgtest.App, "database", db)
	elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Timeout: fixture.Patience}
	for name, c := range map[string]struct {
		sent string
		want byte
	}{
		"without a header": {string(startup), 'R'}, "version 1": {header1 + string(startup), 0}, "version 2": {header2 + string(startup), 0},
	} {
		conn, err := elsewhere.DialContext(t.Context(), "tcp", p.Addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(c.sent)) // the proxy may have closed it before the end
		var first [1]byte
		_ = conn.SetReadDeadline(time.Now().Add(fixture.Patience))
		if _, err := io.ReadFull(conn, first[:]); first[0] != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("%s from 127.0.0.2: answer %q, %v; want %q", name, first, err, c.want)
		}
		_ = conn.Close()
	}
}
