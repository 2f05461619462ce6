package fencing_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/wire"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// BenchmarkCheck measures what each form of the check costs a server: the processor time of the
// backend for one transaction, with the check and, in turns, without it. The client is connected
// directly, and sends what a proxy would, many transactions at a time, so that waking the backend does
// not count. FENCEPOST_TEST_PG_BIN names another version of the server.
func BenchmarkCheck(b *testing.B) {
	const together = 100
	t := leadingTerm(b)
	for _, form := range t.forms() {
		b.Run(form.name, func(b *testing.B) {
			c := t.connect(b)
			var with, without int
			for b.Loop() {
				without += c.run(b, together, form.unchecked)
				with += c.run(b, together, form.checked)
			}
			n := 1000 * float64(b.N) * together
			b.ReportMetric(float64(without)/n, "unchecked-µs/txn")
			b.ReportMetric(float64(with)/n, "checked-µs/txn")
		})
	}
}

// costTest is a database in which somebody leads.
type costTest struct {
	server *pgtest.Server
	db     string
	fence  int32
	term   fencing.Term
}

func leadingTerm(b *testing.B) *costTest {
	b.Helper()
	ctx, s := context.Background(), pgtest.Shared(b)
	t := &costTest{server: s, db: s.Database(b)}
	s.Exec(b, pgtest.App, t.db, "CREATE TABLE public.counters (id int PRIMARY KEY, n int) WITH (fillfactor = 50)",
		"INSERT INTO public.counters SELECT i, 0 FROM generate_series(1, 1000) i", "ANALYZE public.counters")
	st, err := store.Open(ctx, store.Config{Address: s.Addr(), Database: t.db, User: pgtest.Control})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(st.Close)
	fence, err := st.Fence(ctx, "billing")
	if err != nil {
		b.Fatal(err)
	}
	t.fence = fence.ID()
	t.term.Award = fencing.Award{Resource: "billing", Worker: "worker-a", Incarnation: "incarnation-a", Source: "test", InstanceID: "life-1", Index: 1}
	if err := fence.Number(ctx, t.term.Source, t.term.InstanceID); err != nil {
		b.Fatal(err)
	}
	if t.term.Epoch, err = fence.Grant(ctx, t.term.Award); err != nil {
		b.Fatal(err)
	}
	return t
}

// costForm is one way to send a transaction, without and with a check.
type costForm struct {
	name               string
	unchecked, checked [][]byte
}

// The names under which connect prepares statements.
const (
	frontCheck = "fencepost_front"
	fullCheck  = "fencepost_full"
	update     = "update"
	portal     = "fencepost_portal"
)

const (
	updateSQL = "UPDATE public.counters SET n = n + 1 WHERE id = 17"
	startSQL  = "BEGIN ISOLATION LEVEL REPEATABLE READ"
)

// forms returns the ways in which Fencepost sends a checked transaction, or could.
func (t *costTest) forms() []costForm {
	epoch := binary.BigEndian.AppendUint64(nil, uint64(t.term.Epoch))
	front := wire.AppendRun(nil, portal, frontCheck)
	full := wire.AppendRun(nil, portal, fullCheck, epoch, epoch)
	execute := "EXECUTE " + frontCheck + ";"
	executeFull := fmt.Sprintf("EXECUTE %s(%d,%d);", fullCheck, t.term.Epoch, t.term.Epoch)
	inline := fencing.InlineCheckSQL(t.fence, t.term.Worker, t.term.Incarnation, false, t.term.Epoch, t.term.Epoch) + ";"
	asMessages := wire.AppendUnnamedRun(wiretest.Parse("", updateSQL))
	simple := [][]byte{wiretest.Query(updateSQL)}
	prepared := [][]byte{wiretest.Bind("", update), wiretest.Execute("", 0), wiretest.Sync()}
	behind := func(check []byte) [][]byte { return append([][]byte{check}, prepared...) }
	inBlock := func(check []byte) [][]byte {
		return append([][]byte{wiretest.Parse("", startSQL), wiretest.Bind("", ""), wiretest.Execute("", 0), check}, append(prepared[:2:2],
			wiretest.Parse("", "COMMIT"), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Sync())...)
	}
	query := func(check string) [][]byte { return [][]byte{wiretest.Query(check + updateSQL)} }
	return []costForm{
		{"simple/front", simple, query(execute)},
		{"simple/full", simple, query(executeFull)},
		{"simple/inline", simple, query(inline)},
		{"simple/as_messages", simple, [][]byte{front, asMessages}},
		{"prepared/front", prepared, behind(front)},
		{"prepared/full", prepared, behind(full)},
		{"repeatable_read/full", inBlock(nil), inBlock(full)},
	}
}

// costClient is a connection, and the process that serves it.
type costClient struct {
	*wiretest.Conn
	pid int
}

// run sends a transaction several times at once, and returns for how many nanoseconds the backend ran.
func (c costClient) run(b *testing.B, times int, messages [][]byte) int {
	b.Helper()
	before := processorTime(b, c.pid)
	c.Send(slices.Repeat(messages, times)...)
	for range times {
		c.Until('Z')
	}
	return processorTime(b, c.pid) - before
}

// connect prepares what the forms use, and has each prepared statement planned for good.
func (t *costTest) connect(b *testing.B) costClient {
	b.Helper()
	conn, greeting := wiretest.Connect(b, t.server.Addr(), "user", pgtest.App, "database", t.db)
	c := costClient{Conn: conn}
	for _, m := range greeting {
		if m.Type == 'K' {
			c.pid = int(binary.BigEndian.Uint32(m.Body))
		}
	}
	who := t.term.Award
	c.Send(wiretest.Parse(frontCheck, fencing.FrontCheckSQL(t.fence, who.Worker, who.Incarnation, false, t.term.Epoch)),
		wiretest.Parse(fullCheck, fencing.CheckSQL(t.fence, who.Worker, who.Incarnation, false)), wiretest.Parse(update, updateSQL), wiretest.Sync())
	c.Until('Z')
	for _, form := range t.forms() {
		for range 10 { // then the plan of a prepared statement stays
			c.Send(form.checked...)
			if failed := wiretest.ErrorOf(c.Until('Z')); failed != "" {
				b.Fatalf("%s: %s", form.name, failed)
			}
		}
	}
	return c
}

// processorTime returns how many nanoseconds a process has run, as its scheduler counts them.
func processorTime(b *testing.B, pid int) int {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		b.Skipf("this system does not tell processor times: %v", err)
	}
	ran, _, _ := strings.Cut(string(text), " ")
	n, err := strconv.Atoi(ran)
	if err != nil {
		b.Fatal(err)
	}
	return n
}
