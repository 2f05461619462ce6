package protocol_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/wire"
)

// core drives a session by hand.
type core struct {
	t *testing.T
	s *protocol.Session
}

func newCore(t *testing.T, version gate.Version) core {
	return core{t, protocol.New(protocol.Config{Version: version, Cache: sqltext.NewCache(1 << 20)})}
}

// client gives the session messages of the client's, and returns what goes to the server.
func (c core) client(in []byte) (out []byte, n int, need protocol.NeedKind, err error) {
	var p gate.Plan
	p.Reset(in)
	n, need2, err := c.s.FromClient(in, &p)
	out, _ = p.Bytes(nil)
	return append([]byte(nil), out...), n, need2.Kind, err
}

func (c core) server(in ...[]byte) (out []byte) {
	c.t.Helper()
	var p gate.Segments
	all := Cat(in...)
	p.Reset(all)
	if n, _, err := c.s.FromServer(all, &p); err != nil || n < len(all) {
		c.t.Fatalf("took %d of %d bytes: %v", n, len(all), err)
	}
	b, _ := p.Bytes(nil)
	return append([]byte(nil), b...)
}

func failure(code, text string) []byte {
	return wire.AppendServerError(nil, wire.ServerError{Severity: "ERROR", Code: code, Message: text})
}

func ready(status byte) []byte { return wire.AppendReadyForQuery(nil, status) }

// TestOwnExchangeThatFails is tried again, and ends the session when it fails each time. Nothing of the client's
// is sent before it has succeeded.
func TestOwnExchangeThatFails(t *testing.T) {
	t.Parallel()
	c := newCore(t, 18)
	q := Q("select 1")
	for range 5 {
		out, n, need, err := c.client(q)
		if !strings.Contains(string(out), protocol.SetupSQL) || strings.Contains(string(out), "select 1") || n != 0 || need != protocol.NeedRoom || err != nil {
			t.Fatalf("sent %q, took %d, needs %d, %v", out, n, need, err)
		}
		if out := c.server(failure("57014", "canceled"), ready('I')); len(out) != 0 {
			t.Errorf("the client gets %q", out)
		}
	}
	if _, _, _, err := c.client(q); err == nil {
		t.Error("no error after five failures")
	}
}

// TestOwnExchangeThatFailsInABlock: the client gets its error in place of 25P02.
func TestOwnExchangeThatFailsInABlock(t *testing.T) {
	t.Parallel()
	c := newCore(t, 18)
	c.client(Q("begin read write"))
	c.server(wire.AppendParameterStatus(nil, "default_transaction_read_only", "on"), ready('I'))
	if out, n, _, _ := c.client(Q("begin read write")); n == 0 || !strings.Contains(string(out), "begin read write") {
		t.Fatalf("sent %q", out)
	}
	c.server(wire.AppendCommandComplete(nil, "BEGIN"), ready('T'))
	if out, n, _, _ := c.client(Q("select 1")); n != 0 || !strings.Contains(string(out), "SET TRANSACTION READ ONLY") {
		t.Fatalf("sent %q", out)
	}
	c.server(failure("57014", "canceled"), ready('E'))
	c.client(Q("select 1"))
	if out := c.server(failure("25P02", "aborted"), ready('E')); !strings.Contains(string(out), "57014") || strings.Contains(string(out), "25P02") {
		t.Errorf("the client gets %q", out)
	}
}

// TestSurprises end the session.
func TestSurprises(t *testing.T) {
	t.Parallel()
	for _, msg := range [][]byte{ready('I'), failure("22012", "x"), wiretest.Msg('D', []byte{0, 0}), wire.AppendCommandComplete(nil, "SELECT 1"), wiretest.Msg('Z')} {
		c := newCore(t, 18)
		var p gate.Segments
		p.Reset(msg)
		if _, _, err := c.s.FromServer(msg, &p); err == nil {
			t.Errorf("%q passes", msg)
		}
	}
}

// TestCopyDataAndSync: while the server reads COPY data, Flush and Sync are not sent, and a Sync that was sent before
// is none that is answered.
func TestCopyDataAndSync(t *testing.T) {
	t.Parallel()
	c := newCore(t, 18)
	c.client(Sync())
	c.server(ready('I'))
	c.client(Batch(Bind("", "copies"), Exec("", 0)))
	c.server(wire.AppendParameterStatus(nil, "default_transaction_read_only", "on"), ready('I'))
	if out, _, need, err := c.client(Batch(Bind("", "copies"), Exec("", 0))); need != protocol.NeedNothing || err != nil || len(out) == 0 {
		t.Fatalf("needs %d, %v", need, err)
	}
	if _, _, need, _ := c.client(wiretest.CopyData("1\n")); need != protocol.NeedRoom {
		t.Fatalf("needs %d", need)
	}
	c.server(wiretest.Msg('2'), wiretest.Msg('G', []byte{0, 0, 0}))
	if !c.s.Is(protocol.Ready) {
		t.Fatal("not ready")
	}
	out, n, need, err := c.client(Cat(wiretest.CopyData("1\n"), Sync(), Flush(), wiretest.CopyDone(), Sync()))
	if want := Cat(wiretest.CopyData("1\n"), wiretest.CopyDone(), Sync()); string(out) != string(want) || need != protocol.NeedNothing || err != nil {
		t.Errorf("took %d, needs %d, %v, sent %q; want %q", n, need, err, out, want)
	}
}

// TestProvenAgain: before 16, a prepared statement whose table has become a view is refused when it is used.
func TestProvenAgain(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		h.exec(tables)
		h.exec("create function frees() returns int language plpgsql as $$begin reset transaction_read_only; insert into t (v) values ('f'); return 1; end$$; create table seems (a int); grant all on seems to public")
		h.readCatalog()
		c := h.connect()
		use := Batch(Bind("", "s"), Exec("", 0))
		expect(t, c, []string{"", ""}, Batch(Parse("s", "select a from seems")), use)
		h.exec("drop table seems; create view seems as select frees() as a; grant all on seems to public")
		h.readCatalog()
		if got := each(c, use); got[0] == "" {
			t.Error("what is not proven any more passes")
		}
		if n := pgtest.Ask[int](t, h.pg, h.db, "select count(*)::int from t"); n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

// TestPsqlFindsTheLeader: libpq's target_session_attrs looks at the parameter that a settled session sets.
func TestPsqlFindsTheLeader(t *testing.T) {
	h := newHarness(t, 18)
	host, port, _ := strings.Cut(h.addr, ":")
	for attrs, passes := range map[string]bool{"read-write": false, "read-only": true, "any": true, "primary": true} {
		cmd := exec.CommandContext(t.Context(), h.pg.Program(t, "psql"), "-XAtc", "select 1", "host="+host+" port="+port+" user="+pgtest.App+" dbname="+h.db+" sslmode=disable gssencmode=disable target_session_attrs="+attrs)
		if out, err := cmd.CombinedOutput(); (err == nil) != passes {
			t.Errorf("%s: %v: %s", attrs, err, out)
		}
	}
}

// TestTemporaryTables: one that the client has made as the leader can be written, from 16 on, but not with a function
// that read-only mode does not stop. Nor can such a function be an argument of EXECUTE.
func TestTemporaryTables(t *testing.T) {
	h := newHarness(t, 18)
	withTables(h)
	c := h.led(Q("create temp table tt (a text); prepare o(text) as select $1"))
	expect(t, c, []string{"", "ZF002", "", "ZF002", "ZF002", ""}, Q("insert into tt values ('x')"), Q("insert into tt values (pg_notify('wp', 'x')::text)"), Q("execute o('x')"), Q("execute o(pg_notify('wp', 'x')::text)"), Batch(Run("execute o(pg_notify('wp', 'x')::text)")), Q("select * from tt"))
}
