package failover

import (
	"fmt"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAnOrderDuringAFailover: the standby is promoted while an order waits, and the old primary
// lives. The order does not count as given there.
func TestAnOrderDuringAFailover(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	w := h.join(h.proxy("FENCEPOST_LEASE_GRACE=30s", "FENCEPOST_LEASE_TTL=60s"), "w")
	h.must(w, "BEGIN")
	h.must(w, "INSERT INTO work VALUES ('open')")
	ended := make(chan string, 1)
	go func() {
		code, out := h.commandWith([]string{"FENCEPOST_LEASE_GRACE=5m"}, "pause", "billing", "--database", h.db)
		ended <- fmt.Sprintf("code %d: %s", code, out)
	}()
	process.Eventually(t, process.Patience, "pause to wait for the transaction", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%fencepost.pause(%' AND wait_event = 'PgSleep'") == 1
	})
	h.b.Promote(t)
	says := "the command was given at host " + h.a.Addr() + ", but " + h.a.Addr() + " is no longer the primary"
	if got := <-ended; !strings.HasPrefix(got, "code 1:") || !strings.Contains(got, says) || !strings.Contains(got, "run it again") || strings.Contains(got, "is paused") {
		t.Errorf("pause: %s; want code 1 and %q", got, says)
	}
	if code, out := h.command("pause", "billing", "--database", h.db); code != 0 || !strings.Contains(out, "host "+h.b.Addr()+" is the primary") || !strings.Contains(out, "is paused") {
		t.Errorf("pause again: code %d:\n%s", code, out)
	}
}

// starts begins to run the program.
func (h *pair) starts(args ...string) *process.Logged {
	h.t.Helper()
	cmd := osexec.Command(process.Program(h.t), args...)
	cmd.Env = process.Environment(h.settings()...)
	return process.StartLogged(h.t, "fencepost "+args[0], cmd, func(string) {})
}

// awaitSaid waits until a command has said something.
func (h *pair) awaitSaid(command *process.Logged, says string) {
	h.t.Helper()
	if !process.Holds(process.Patience, func() bool { return strings.Contains(command.Log(), says) }) {
		h.t.Fatalf("%s does not say %q:\n%s", command.Name, says, command.Log())
	}
}

// TestCommandsWithoutTheSynchronousStandby wait for it and say so.
func TestCommandsWithoutTheSynchronousStandby(t *testing.T) {
	t.Parallel()
	h := newPair(t).synchronous()
	p := h.proxy()
	for _, worker := range []string{"v", "w"} {
		h.must(h.join(p, worker), "SELECT 1")
		if code, out := h.command("evict", "billing", "--database", h.db, "--at", h.a.Addr()); code != 0 {
			t.Fatalf("evict: code %d: %s", code, out)
		}
	}
	h.a.Exec(t, pgtest.Superuser, h.db, "UPDATE fencepost.grants SET granted_at = granted_at - interval '10 days'")
	waits := func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND (application_name LIKE 'fencepost%' OR query = 'commit')") > 0
	}
	start := func(args ...string) *process.Logged {
		command := h.starts(args...)
		process.Eventually(t, process.Patience, args[0]+" to wait for the standby", waits)
		return command
	}
	const says = "waiting: no standby of synchronous_standby_names = 'standby' confirms "
	bump := []string{"generation", "bump", "--restored", "--yes", "--database", h.db, "--at", h.a.Addr()}
	for _, c := range []struct {
		args       []string
		what, done string
	}{
		{bump, "what was written", ""},
		{[]string{"ledger", "prune", "--keep", "1d", "--database", h.db, "--at", h.a.Addr()}, "what was written", ""},
		{[]string{"migrate", "--dsn", h.a.DSN(pgtest.Superuser, h.db), "--control-role", pgtest.Control}, "what was written", ""},
		{[]string{"pause", "billing", "--database", h.db, "--at", h.a.Addr()}, "the grant", "is paused"},
	} {
		h.b.Freeze(t)
		command := start(c.args...)
		h.awaitSaid(command, says+c.what)
		process.Always(t, time.Second, c.args[0]+" waits", waits)
		h.b.Thaw(t)
		if code := command.Wait(t); code != 0 || !strings.Contains(command.Log(), c.done) {
			t.Errorf("%v: code %d, want 0 and %q:\n%s", c.args, code, c.done, command.Log())
		}
	}

	h.b.Freeze(t)
	command := start(bump...)
	process.Eventually(t, process.Patience, "the wait of the new generation to be cancelled", func() bool {
		return ask[int](h, h.a, "SELECT count(*) FROM (SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%lease_bump%') c") == 1
	})
	if code := command.Wait(t); code != 1 || !strings.Contains(command.Log(), "it is recorded, but no standby of synchronous_standby_names has confirmed it") {
		t.Errorf("a wait that was cancelled: code %d: %s", code, command.Log())
	}
	h.b.Thaw(t)
}

// TestLeversAtTwoPrimaries: two standbys were promoted, and a worker leads at each. The command acts
// where the operator says, and says what goes on elsewhere.
func TestLeversAtTwoPrimaries(t *testing.T) {
	t.Parallel()
	h := newPair(t)
	h.c = h.a.Standby(t)
	h.a.Exec(t, pgtest.Control, h.db, "SELECT fencepost.register('billing')")
	h.awaitReplay(h.b, h.c)
	h.fail(h.a.Crash)
	h.c.Promote(t)
	b, c := h.b.Addr(), h.c.Addr()
	atB := h.join(h.proxy(), "B")
	atC := h.join(h.proxy("FENCEPOST_UPSTREAM_ADDRESS="+c+", "+h.a.Addr()+", "+b), "C")
	run := func(code int, stdout, stderr string, args ...string) (out string) {
		t.Helper()
		got, out, warned := h.execute(nil, append(args, "--database", h.db)...)
		if got != code || !strings.Contains(out, stdout) || !strings.Contains(warned, stderr) {
			t.Errorf("fencepost %v: code %d, want %d, %q on stdout and %q on stderr:\n%s\n%s", args, got, code, stdout, stderr, out, warned)
		}
		return out + warned
	}

	run(0, "billing", "warning: "+c+" accepts writes too, on the same timeline as "+b, "resource", "list")
	out := run(1, "", "nothing changed: "+b+" would be the host to act at, but "+h.a.Addr()+" cannot be looked at", "evict", "billing")
	for _, want := range []string{"; " + c + " accepts writes too", "with --at " + b, "with --at " + c} {
		if !strings.Contains(out, want) {
			t.Errorf("evict says nothing of %q: %s", want, out)
		}
	}
	run(1, "", "--at is "+h.a.Addr()+", but "+b+" and "+c+" accept writes", "pause", "billing", "--at", h.a.Addr())

	run(0, "worker B does not lead", "warning: "+c+" accepts writes too, on the same timeline as "+b+": stop one of them. The command acts at "+b+" only: whoever leads at "+c+" continues", "evict", "billing", "--at", b)
	if err := exec(atB, "INSERT INTO work VALUES ('evicted')"); errorOf(err).Code != "ZF001" {
		t.Errorf("the worker that was evicted: %v", err)
	}
	h.must(atC, "INSERT INTO work VALUES ('leads')")

	out = run(0, "is paused", "warning: "+b+" accepts writes too, on the same timeline as "+c, "pause", "billing", "--at", c)
	if !strings.Contains(out, "host "+c+" is the primary") || strings.Contains(out, "host "+b) {
		t.Errorf("pause says which host is the primary: %s", out)
	}
	if err := exec(atC, "INSERT INTO work VALUES ('paused')"); errorOf(err).Code != "ZF001" {
		t.Errorf("the worker whose resource was paused: %v", err)
	}
}

// awaitReplay waits until standbys have what the primary has now.
func (h *pair) awaitReplay(standbys ...*pgtest.Server) {
	h.t.Helper()
	now := ask[string](h, h.a, "SELECT pg_current_wal_lsn()::text")
	for _, s := range standbys {
		process.Eventually(h.t, process.Patience, "a standby to follow", func() bool {
			return ask[bool](h, s, "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn", now)
		})
	}
}
