package system

import (
	"crypto/tls"
	"fmt"
	"net"
	"testing"

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
	for _, secured := range []bool{false, true} {
		for _, at := range []int{1, 10, 29} {
			t.Run(fmt.Sprintf("TLS=%t, %d bytes", secured, at), func(t *testing.T) {
				t.Parallel()
				h := newCluster(t, "postgres")
				own := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Hosts: []string{"127.0.0.1"}})
				p, _ := h.configured(tokens, "TLS_MODE=allow", "TLS_CERT_FILE="+own.CertFile, "TLS_KEY_FILE="+own.KeyFile)
				q, _ := h.configured(tokens)
				h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
				c := wiretest.Dial(t, p.Address)
				pieces := &inPieces{Conn: c.Conn, then: func() { knowsToken7(t, h, p, q) }}
				c.Conn = pieces
				if secured {
					c.Secure(&tls.Config{InsecureSkipVerify: true}, false)
				}
				c.Send(wiretest.Startup(h.startup("w")...))
				c.Until('Z')
				pieces.at = at
				c.Send(sent)
				if state := wiretest.ErrorOf(c.Until('Z')); state != "" {
					t.Fatalf("SET fails with %s", state)
				}
				wroteNothing(t, h, wiretest.ErrorOf(c.Until('Z')))
			})
		}
	}
}

// TestSafetyWhatIsSentDuringTheStartupStartsOver: a client sends a token and a write before it is told that it may.
func TestSafetyWhatIsSentDuringTheStartupStartsOver(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
	other, knows := h.join(p, "other"), h.join(p, "w")
	locked := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := locked.Exec(t.Context(), "BEGIN; LOCK TABLE pg_db_role_setting"); err != nil {
		t.Fatal(err)
	}
	c := wiretest.Dial(t, p.Address)
	c.Send(wiretest.Startup(h.startup("w")...), wiretest.Query("SET fencepost.token = '7'"), wiretest.Query(decidedBefore))
	process.Eventually(t, process.Patience, "the startup to wait", func() (waits bool) {
		err := locked.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'pg_db_role_setting'::regclass AND NOT granted)").Scan(&waits)
		return waits && err == nil
	})
	for i, c := range []*client{other, knows} {
		c.must(fmt.Sprintf("SET fencepost.token = '%d'", 6+i))
		// What the grant needs a new connection for waits for the lock, too, and is given up after 3 s.
		process.Eventually(t, process.Patience, fmt.Sprintf("token %d to lead", 6+i), func() bool { return c.show("role") == "leader" })
		c.must("SELECT 1", "INSERT INTO work VALUES ('it knows')")
	}
	if _, err := locked.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"the startup", "SET"} {
		if state := wiretest.ErrorOf(c.Until('Z')); state != "" {
			t.Fatalf("%s fails with %s", what, state)
		}
	}
	wroteNothing(t, h, wiretest.ErrorOf(c.Until('Z')))
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
