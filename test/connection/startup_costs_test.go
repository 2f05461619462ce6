package connection

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

// TestALeaderDoesNotWaitAgain: the startup of a worker that leads already says nothing to its backend about the time
// that it would wait for the lead. (idle_session_timeout then counts as the client has set it, from the start.)
func TestALeaderDoesNotWaitAgain(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	for _, leads := range []bool{true, false} {
		t.Run(fmt.Sprint("leads ", leads), func(t *testing.T) {
			t.Parallel()
			var sent record
			relay := fixture.NewRelay(t, "tcp", pg.Addr(), func() fixture.Passing { return fixture.Passing{ToServer: sent.add} })
			p := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.Upstream = fixture.At(t, relay.Addr, nil) })
			s := fixture.NewClusterOn(t, p)
			granted := make(chan struct{})
			if leads {
				s.Leader("w")
				close(granted)
			} else {
				go func() {
					defer close(granted)
					w := joined(t, p, s.DB, "w")
					process.Holds(process.Patience, func() bool { return sent.contains("idle_session_timeout") }) // it has begun to wait
					if _, err := w.TryGrant(); err != nil {
						t.Error(err)
					}
				}()
			}
			conn := s.Connect("w", "fencepost.campaign", "wait")
			<-granted
			fixture.MustPass(t, conn, wiretest.Query("select 1"))
			found := sent.contains("idle_session_timeout")
			if found == leads {
				t.Errorf("it is told of a wait: %v", found)
			}
		})
	}
}

// record is what was sent to a server.
type record struct {
	mu   sync.Mutex
	text []byte
}

func (r *record) add(b []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, b...)
	return b
}

func (r *record) contains(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(string(r.text), text)
}

// TestASuperuserInAnotherRoleIsRefused: the control role could not end its backend, whatever role the session has
// taken on, so that a grant could not end its transactions.
func TestASuperuserInAnotherRoleIsRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for _, options := range []string{"", "-c role=" + pgtest.App, "-c session_authorization=" + pgtest.App} {
		params := []string{"user", pgtest.Superuser, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", "super"}
		if options != "" {
			params = append(params, "options", options)
		}
		conn := wiretest.Dial(t, s.Addr)
		conn.Send(wiretest.Startup(params...))
		var refused string
		for _, m := range conn.Rest() {
			if m.Type == 'E' {
				refused = m.Fields()['C'] + " " + m.Fields()['M']
			}
		}
		if !strings.HasPrefix(refused, "ZF004") || !strings.Contains(refused, "is a superuser") {
			t.Errorf("with options %q: refused by %q", options, refused)
		}
	}
}
