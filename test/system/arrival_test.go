package system

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// inPieces is a connection that sends the first bytes of its next write, if at is not 0, calls then, and sends the rest.
type inPieces struct {
	net.Conn
	at   int
	then func()
}

func (c *inPieces) Write(b []byte) (int, error) {
	at := c.at
	if c.at = 0; at == 0 {
		return c.Conn.Write(b)
	}
	if n, err := c.Conn.Write(b[:at]); err != nil {
		return n, err
	}
	c.then()
	n, err := c.Conn.Write(b[at:])
	return at + n, err
}

// TestSafetyWhatHasArrivedInPartStartsOver: a client sends a token and a write, and only the first bytes arrive before its
// worker knows the epoch through another connection.
func TestSafetyWhatHasArrivedInPartStartsOver(t *testing.T) {
	t.Parallel()
	sent := append(wiretest.Query("SET fencepost.token = '7'"), wiretest.Query(decidedBefore)...)
	for _, of := range []struct {
		secured bool
		at      int
	}{{false, 1}, {false, 29}, {true, 10}} {
		t.Run(fmt.Sprintf("TLS=%t, %d bytes", of.secured, of.at), func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres")
			own := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Hosts: []string{"127.0.0.1"}})
			p, _ := h.configured(tokens, "TLS_MODE=allow", "TLS_CERT_FILE="+own.CertFile, "TLS_KEY_FILE="+own.KeyFile)
			q, _ := h.configured(tokens)
			h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
			c := wiretest.Dial(t, p.Address)
			pieces := &inPieces{Conn: c.Conn, then: func() { knowsToken7(t, h, p, q) }}
			c.Conn = pieces
			if of.secured {
				c.Secure(&tls.Config{InsecureSkipVerify: true}, false)
			}
			c.Send(wiretest.Startup(h.startup("w")...))
			c.Until('Z')
			pieces.at = of.at
			c.Send(sent)
			if state := wiretest.ErrorOf(c.Until('Z')); state != "" {
				t.Fatalf("SET fails with %s", state)
			}
			wroteNothing(t, h, wiretest.ErrorOf(c.Until('Z')))
		})
	}
}

// TestSafetyWhatIsSentDuringTheStartupStartsOver: a client sends a token and a write before it is told that it may.
func TestSafetyWhatIsSentDuringTheStartupStartsOver(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	s := newSlowStartup()
	relay := fixture.NewRelay(t, "tcp", h.pg.Addr(), s.begin)
	t.Cleanup(s.goOn) // before the relay waits for its connections
	p, _ := h.configured(tokens, "UPSTREAM_ADDRESS="+relay.Addr)
	h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
	other, knows := h.join(p, "other"), h.join(p, "w")
	s.armed.Store(true)
	c := wiretest.Dial(t, p.Address)
	c.Send(wiretest.Startup(h.startup("w")...), wiretest.Query("SET fencepost.token = '7'"), wiretest.Query(decidedBefore))
	process.Eventually(t, process.Patience, "the startup to wait", s.waits.Load)
	for i, c := range []*client{other, knows} {
		c.must(fmt.Sprintf("SET fencepost.token = '%d'", 6+i))
		process.Eventually(t, process.Patience, fmt.Sprintf("a write under token %d", 6+i), func() bool { return c.exec("INSERT INTO work VALUES ('it knows')") == nil })
	}
	s.goOn()
	for _, what := range []string{"the startup", "SET"} {
		if state := wiretest.ErrorOf(c.Until('Z')); state != "" {
			t.Fatalf("%s fails with %s", what, state)
		}
	}
	wroteNothing(t, h, wiretest.ErrorOf(c.Until('Z')))
}

// slowStartup holds back what Postgres answers to the startups of workers that begin once it is armed.
type slowStartup struct {
	armed atomic.Bool
	waits atomic.Bool   // an answer is held back
	ends  chan struct{} // closed by goOn
	goOn  func()
}

func newSlowStartup() *slowStartup {
	s := &slowStartup{ends: make(chan struct{})}
	s.goOn = sync.OnceFunc(func() { close(s.ends) })
	return s
}

// begin is called for each connection to Postgres.
func (s *slowStartup) begin() fixture.Passing {
	var slow atomic.Bool
	asWorker := []byte("user\x00" + pgtest.App + "\x00")
	return fixture.Passing{
		ToServer: func(b []byte) []byte {
			if s.armed.Load() && bytes.Contains(b, asWorker) {
				slow.Store(true)
			}
			return b
		},
		ToClient: func(b []byte) []byte {
			if slow.Swap(false) {
				s.waits.Store(true)
				<-s.ends
			}
			return b
		},
	}
}

// startup are the startup parameters of a worker, as dsn has them.
func (h *cluster) startup(worker string) []string {
	return []string{"user", pgtest.App, "database", h.db, "fencepost.resource", resource, "fencepost.worker", worker, "fencepost.worker_timeout", "0"}
}

// wroteNothing checks that a write which was decided early has ended in this state, and has written nothing.
func wroteNothing(t *testing.T, h *cluster, state string) {
	t.Helper()
	if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'stale'"); state != "ZF003" || n != 0 {
		t.Errorf("it ends with %q, and has written %d rows; want ZF003 and none", state, n)
	}
}
