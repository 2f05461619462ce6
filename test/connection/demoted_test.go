package connection

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/upstream"
)

// staged is what a look at a host finds, as a test says.
type staged struct {
	atomic.Pointer[upstream.Finding]
}

func (s *staged) Look(context.Context) upstream.Finding { return *s.Load() }
func (s *staged) Close()                                {}

// TestAStartupEndsWithItsHost: a client that waits for a host which hangs is told when another
// host is the primary, and gets a session at that one.
func TestAStartupEndsWithItsHost(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	hangs, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	old, next := &staged{}, &staged{}
	old.Store(&upstream.Finding{System: "1", Timeline: 1})
	next.Store(&upstream.Finding{System: "1", Standby: true})
	servers, err := upstream.Several(upstream.Config{
		Hosts: []upstream.Host{{Address: hangs.Addr().String()}, {Address: pg.Addr()}},
		Probe: func(h upstream.Host) upstream.Probe {
			if h.Address == pg.Addr() {
				return next
			}
			return old
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { servers.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	p := fixture.NewProxy(t, pg, func(cfg *proxy.Config) { cfg.Upstream, cfg.StartupTimeout = servers, time.Hour })

	c := wiretest.Dial(t, p.Addr)
	c.Send(wiretest.Startup("user", pgtest.App, "database", "postgres"))
	conn, err := hangs.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	next.Store(&upstream.Finding{System: "1", Timeline: 2})
	if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P01" || !strings.Contains(f['M'], pg.Addr()+" is") || !strings.HasSuffix(f['M'], " [57P01]") {
		t.Errorf("the client is told %v", f)
	}
	again, _ := wiretest.Connect(t, p.Addr, "user", pgtest.Superuser, "database", "postgres")
	fixture.MustExec(t, again, "select 1")
}
