package connection

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// held is a client's socket below its TLS: it keeps what is written until the
// test lets some of it go.
type held struct {
	net.Conn
	mu   sync.Mutex
	hold bool
	kept bytes.Buffer
}

func (h *held) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold {
		return h.kept.Write(b)
	}
	return h.Conn.Write(b)
}

// keep holds back all that is written from now on.
func (h *held) keep() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hold = true
}

// release sends all but the last bytes of what is held, as one write. With none
// left nothing is held any more.
func (h *held) release(t *testing.T, but int) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.Conn.Write(h.kept.Next(h.kept.Len() - but)); err != nil {
		t.Fatal(err)
	}
	h.hold = but > 0
}

// holding connects a worker over a socket whose bytes can be held back.
func (s *sides) holding(t *testing.T, worker string, version uint16) (*wiretest.Conn, *held) {
	t.Helper()
	c := wiretest.Dial(t, s.Addr)
	h := &held{Conn: c.Conn}
	c.Conn = h
	cfg := s.clientConfig()
	cfg.MaxVersion = version
	c.Secure(cfg, false)
	c.Send(wiretest.Startup("user", pgtest.App, "database", s.db, "fencepost.resource", "r", "fencepost.worker", worker))
	c.Until('Z')
	return c, h
}

// recordsOf holds the parts back, each as a record, and returns the size of the
// last one.
func recordsOf(c *wiretest.Conn, h *held, parts ...[]byte) (last int) {
	h.keep()
	for _, p := range parts {
		before := h.kept.Len()
		c.Send(p)
		last = h.kept.Len() - before
	}
	return last
}

// TestSafetyAnnouncedUnderTLS: a write that was sent before its sender can have read
// that it leads is refused, wherever its bytes are when that is said: in the same
// record, in one behind it, or in a record of which a part has arrived.
func TestSafetyAnnouncedUnderTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{major: 0})
	admin := s.PG.Connect(t, pgtest.Superuser, s.db)
	if _, err := admin.Exec(t.Context(), "create table t (v text); grant all on t to app"); err != nil {
		t.Fatal(err)
	}
	ask, write := Q("show fencepost.role"), Q("insert into t (v) values ('mine')")
	for version, max := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		for name, missing := range map[string]func(last int) int{
			"one record": nil, "two records": func(int) int { return 0 }, "all but a byte": func(int) int { return 1 },
			"half a record": func(last int) int { return last / 2 }, "a header": func(last int) int { return last - 5 },
			"a byte of a header": func(last int) int { return last - 1 }, "nothing": func(last int) int { return last },
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				if _, err := admin.Exec(t.Context(), "truncate t"); err != nil {
					t.Fatal(err)
				}
				worker := strings.ReplaceAll("w "+version+name, " ", "_")
				c, h := s.holding(t, worker, max)
				fixture.MustPass(t, c, Q("select 1"))
				s.Candidacy(s.db, "r", worker).Grant()
				left := 0
				if missing == nil {
					recordsOf(c, h, Cat(ask, write))
				} else {
					left = missing(recordsOf(c, h, ask, write))
				}
				h.release(t, left)
				if all := c.Until('Z'); !strings.Contains(fmt.Sprint(all), "leader") {
					t.Errorf("the answer is %v", all)
				}
				h.release(t, 0)
				want, rows := "ZF003", 0
				if name == "nothing" { // and so it may have been written by one who knows
					want, rows = "", 1
				}
				if all := c.Until('Z'); wiretest.ErrorOf(all) != want {
					t.Errorf("the write got %v, want %q", all, want)
				}
				if got := number(t, s.Proxy, s.db, "select count(*) from t"); int(got) != rows {
					t.Errorf("%d rows, want %d", got, rows)
				}
				fixture.MustPass(t, c, Q("insert into t (v) values ('mine')"))
			})
		}
	}
}
