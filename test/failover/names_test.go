package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/upstream"
)

// name is an address that leads to one server after another. Connections that exist stay where
// they are, as with a DNS name or a virtual address.
type name struct {
	net.Listener
	to atomic.Value // the address of a server
}

func newName(t *testing.T, to string) *name {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &name{Listener: l}
	n.to.Store(to)
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			relays.Go(func() { n.relay(in) })
		}
	})
	t.Cleanup(func() { l.Close(); relays.Wait() })
	return n
}

func (n *name) address() string { return n.Addr().String() }

// relay moves bytes both ways until one side ends.
func (n *name) relay(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", n.to.Load().(string))
	if err != nil {
		return
	}
	defer out.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(in, out) // either end of a connection ends the relay
		in.Close()
	}()
	_, _ = io.Copy(out, in)
	out.Close()
	<-back
}

// TestANameThatLeadsElsewhere: Fencepost notices, though the connections of its looks do not break.
func TestANameThatLeadsElsewhere(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	one, two := newName(t, h.a.Addr()), newName(t, h.b.Addr())
	servers := h.run(h.configuration(one.address(), two.address()))
	h.awaitStates(servers, upstream.IsPrimary, upstream.Standby)
	two.to.Store(h.a.Addr())
	views := h.awaitStates(servers, upstream.IsPrimary, upstream.SameServer)
	if says := "is the same server as " + one.address(); !strings.Contains(views[1].Is, says) {
		t.Errorf("the second name %s", views[1].Is)
	}
	two.to.Store(h.b.Addr())
	h.awaitStates(servers, upstream.IsPrimary, upstream.Standby)
	one.to.Store(h.b.Addr())
	two.to.Store(h.a.Addr())
	h.awaitStates(servers, upstream.Standby, upstream.IsPrimary)

	// One that is read-only is none, as with libpq's target_session_attrs=read-write. It ends no session.
	primary, err := servers.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	readOnly := func(value string) {
		h.a.Exec(t, pgtest.Superuser, "postgres", "ALTER SYSTEM SET default_transaction_read_only = "+value, "SELECT pg_reload_conf()")
	}
	readOnly("on")
	h.awaitStates(servers, upstream.Standby, upstream.ReadOnly)
	if _, err := servers.Primary(t.Context()); err == nil || primary.Tenure.Err() != nil {
		t.Errorf("read-only, it is the primary: %v; its tenure has ended: %v", err, primary.Tenure.Err())
	}
	readOnly("off")
	h.awaitStates(servers, upstream.Standby, upstream.IsPrimary)
}

// mistaken is a probe that takes a standby for the primary until its connection is closed.
type mistaken struct{ closed atomic.Bool }

func (m *mistaken) Look(context.Context) upstream.Finding {
	return upstream.Finding{System: "1", Timeline: 1, Standby: m.closed.Load()}
}
func (m *mistaken) Close() { m.closed.Store(true) }

// TestAConnectionThatLeadsToAStandby is refused, and makes Fencepost look again.
func TestAConnectionThatLeadsToAStandby(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	start := func() *upstream.Servers {
		servers, err := upstream.Several(upstream.Config{
			Hosts: []upstream.Host{{Address: h.b.Addr()}, {Address: h.a.Addr()}},
			Probe: func(host upstream.Host) upstream.Probe {
				m := &mistaken{}
				m.closed.Store(host.Address != h.b.Addr())
				return m
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { servers.Run(ctx) })
		t.Cleanup(func() { cancel(); wg.Wait() })
		h.awaitPrimary(servers, h.b)
		return servers
	}
	says := h.b.Addr() + " was the primary when it was last looked at"

	servers := start()
	p := fixture.NewProxy(t, h.a, func(c *proxy.Config) { c.Upstream = servers })
	_, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s@%s/%s", pgtest.Superuser, p.Addr, h.db))
	if e := errorOf(err); e.Code != "57P03" || !strings.Contains(e.Detail, says) {
		t.Errorf("a session at the standby is refused with %v (%s)", err, e.Detail)
	}
	h.awaitStates(servers, upstream.Standby, upstream.Standby)

	servers = start()
	_, err = hosts.Open(t.Context(), h.configuration(h.b.Addr(), h.a.Addr()), servers, h.db, zaptest.NewLogger(t), nil)
	var refusal *fencing.Refusal
	if !errors.As(err, &refusal) || refusal.SQLState != "57P03" || !strings.Contains(refusal.Detail, says) {
		t.Errorf("the control role at the standby: %v", err)
	}
	h.awaitStates(servers, upstream.Standby, upstream.Standby)
}

// TestASessionAtAServerThatTheAddressHasLeft: the only address leads to the new primary, and the old one is gone without
// a trace, so that TCP reports nothing. Its worker keeps nobody else from leading, and a worker that waits there for the
// lead does not get it.
func TestASessionAtAServerThatTheAddressHasLeft(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	address := newName(t, h.a.Addr())
	p := h.proxy("FENCEPOST_UPSTREAM_ADDRESS=" + address.address())
	w := h.join(p, "w")
	h.must(w, "INSERT INTO work VALUES ('before')")
	late, waits := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := h.tryJoin(p, "waiter")
		waits <- err
	}()
	fixture.Eventually(t, "a worker to wait", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND query LIKE '%idle_session_timeout%'", pgtest.App) == 1
	})
	h.a.Freeze(t)
	go func() { late <- exec(w, "INSERT INTO work VALUES ('late')") }()
	h.b.Promote(t)
	address.to.Store(h.b.Addr())

	other := h.join(h.proxy("FENCEPOST_UPSTREAM_ADDRESS="+h.b.Addr()), "other")
	h.must(other, "INSERT INTO work VALUES ('other')")
	for what, end := range map[string]chan error{"the statement": late, "the wait": waits} {
		e, says := errorOf(<-end), address.address()+" leads to another server now"
		// Its proxy may have read first of the next epoch, or that the new primary does not have the registration.
		ended := what == "the statement" && (e.Code == fencing.StateSuperseded || e.Code == fencing.StateNoFence)
		if !ended && (e.Code != "57P01" || !strings.Contains(e.Message, says)) {
			t.Errorf("%s at the former primary ended with %v", what, e)
		}
	}
	p.Await(t, "session ended: its server is no longer the one that its address leads to", "host", address.address())
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := h.join(p, "again")
	h.must(again, "SELECT pg_sleep(8)") // longer than it takes to ask where the address leads
	h.must(again, "INSERT INTO work VALUES ('again')")
	if got := h.works(); got != "before other again" {
		t.Errorf("the table contains %q", got)
	}
}
