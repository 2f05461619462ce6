package failover

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/upstream"
)

// TestBothProxiesFollowAFailover: the primary crashes. Until the standby is promoted, new
// connections are told so; after that, the worker writes at the new primary, whichever proxy it
// connects to.
func TestBothProxiesFollowAFailover(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	one, two := h.proxy(), h.proxy()
	w := h.join(one, "w")
	h.must(w, "INSERT INTO work VALUES ('before')")
	h.awaitHosts(one, upstream.Standby, upstream.IsPrimary)
	one.Await(t, "primary found", "host", h.a.Addr())
	if n := len(one.Lines("several upstream hosts")); n != 0 {
		t.Errorf("%d warnings about a primary with a synchronous standby", n)
	}

	h.a.Crash(t)
	if err := exec(w, "SELECT 1"); err == nil {
		t.Error("the session goes on after its server has crashed")
	}
	process.Eventually(t, process.Patience, "a refusal that says what was found", func() bool {
		_, err := h.tryJoin(one, "w")
		e := errorOf(err)
		return e.Code == "57P03" && strings.Contains(e.Detail, h.b.Addr()+" is a standby") && strings.Contains(e.Detail, h.a.Addr()+" cannot be looked at")
	})
	process.Eventually(t, process.Patience, "/readyz to say that there is no primary", func() bool {
		r := h.ready(one)
		return !r.Ready && strings.Contains(r.Upstream, "none of the 2 hosts is the primary")
	})

	h.b.Promote(t)
	w = h.join(one, "w")
	h.must(w, "INSERT INTO work VALUES ('after')")
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	other := h.join(two, "other")
	h.must(other, "INSERT INTO work VALUES ('other')")
	if got := h.works(); got != "before after other" {
		t.Errorf("the table contains %q", got)
	}
	for _, p := range []*process.Server{one, two} {
		h.awaitHosts(p, upstream.IsPrimary, upstream.Unreachable)
		p.Await(t, "the primary has changed", "from", h.a.Addr(), "host", h.b.Addr())
		process.Eventually(t, process.Patience, "the metric to show the primary", func() bool {
			_, metrics := p.Get(t, "/metrics")
			return strings.Contains(metrics, `fencepost_upstream_host{address="`+h.b.Addr()+`",state="primary"} 1`)
		})
	}
	process.Eventually(t, process.Patience, "status --ready to show the primary", func() bool {
		_, out := h.command("status", "--admin", one.Admin, "--ready")
		return strings.Contains(out, "host: "+h.b.Addr()+" is the primary, since ") &&
			strings.Contains(out, "warning: several upstream hosts, and synchronous_standby_names is empty")
	})
}

// TestAFrozenPrimaryIsNotWaitedFor: its connections stay open, and nobody answers there.
func TestAFrozenPrimaryIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p := h.proxy()
	idle, busy := h.join(p, "w"), h.join(p, "w")
	h.must(idle, "INSERT INTO work VALUES ('before')")
	asleep := make(chan error, 1)
	sleep := func() {
		go func() { asleep <- exec(busy, "SELECT pg_sleep(600)") }()
		process.Eventually(t, process.Patience, "a statement to run", func() bool {
			return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == 1
		})
	}
	sleep()
	if err := busy.PgConn().CancelRequest(t.Context()); err != nil { // reaches the host of the session, the second in the list
		t.Fatal(err)
	}
	if e := errorOf(<-asleep); e.Code != "57014" {
		t.Errorf("the statement that was cancelled ended with %v", e)
	}
	sleep()

	h.fail(func(t testing.TB) { h.a.Freeze(t) })
	says := h.a.Addr() + " is no longer the primary, " + h.b.Addr() + " is"
	select {
	case err := <-asleep:
		if e := errorOf(err); e.Code != "57P01" || !strings.Contains(e.Message, says) {
			t.Errorf("the statement at the frozen server ended with %v", err)
		}
	case <-time.After(process.Patience): // otherwise, it would wait for ever
		t.Fatal("a session waits for the frozen server")
	}
	if e := errorOf(exec(idle, "SELECT 1")); e.Code != "57P01" || !strings.Contains(e.Message, says) {
		t.Errorf("the idle session ended with %v", e)
	}
	w := h.join(p, "w")
	h.must(w, "INSERT INTO work VALUES ('after')")
	h.awaitHosts(p, upstream.IsPrimary, upstream.Unreachable)

	h.a.Thaw(t) // it still takes itself for the primary
	h.awaitHosts(p, upstream.IsPrimary, upstream.FormerPrimary)
	h.must(w, "INSERT INTO work VALUES ('after that')")
	if got := h.works(); got != "before after after that" {
		t.Errorf("the table contains %q", got)
	}
	if warnings := strings.Join(h.ready(p).Warnings, "\n"); !strings.Contains(warnings, h.a.Addr()+" is a former primary") {
		t.Errorf("/readyz does not warn of the former primary: %q", warnings)
	}
	h.b.Crash(t) // the former primary is none, also when it is alone
	process.Eventually(t, process.Patience, "a refusal", func() bool {
		_, err := h.tryJoin(p, "w")
		return errorOf(err).Code == "57P03"
	})
}
