package protocol

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

// leading returns a machine of a leader that was told epoch 7.
func leading(version gate.Version) *Machine {
	st := &fencing.Status{Role: fencing.Leader, Epoch: 7, Holder: fencing.Record{Epoch: 7}}
	m := New(Config{
		Mode: ModeFenced, Version: version, Status: func() *fencing.Status { return st }, Cache: sqltext.NewCache(1 << 20),
		Fence: 1, Resource: "billing", Worker: "w1", Incarnation: "i1",
	})
	m.AppendPrepare(nil)
	_ = m.Prepared(nil)
	m.AppendGreeting(nil, st, 7)
	return m
}

func join(parts ...[]byte) []byte {
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// turn is one exchange: what the client sends, and all that the server answers,
// to ours and to the client's.
type turn struct {
	name           string
	client, server []byte
}

func turns() []turn {
	done := func(tag string) []byte { return wiretest.Msg('C', []byte(tag), []byte{0}) }
	row := wiretest.Msg('D', []byte{0, 1, 0xff, 0xff, 0xff, 0xff})
	columns := wiretest.Msg('T', []byte{0, 0})
	ready := wiretest.Msg('Z', []byte{'I'})
	check := join(wiretest.Msg('2'), row, done("SELECT 1"), wiretest.Msg('3'))
	const update = "UPDATE accounts SET balance = balance + 1 WHERE id = 4711"
	return []turn{
		{"simple", wiretest.Query(update), join(columns, row, done("SELECT 1"), done("UPDATE 1"), ready)},
		{"prepared", join(wiretest.Bind("", "s", "4711"), wiretest.Execute("", 0), wiretest.Sync()),
			join(check, wiretest.Msg('2'), done("UPDATE 1"), ready)},
		{"extended", join(wiretest.Parse("", update), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Sync()),
			join(check, wiretest.Msg('1'), wiretest.Msg('2'), done("UPDATE 1"), ready)},
	}
}

// exchanges returns a function that plays a turn once on one machine.
func exchanges(tb testing.TB, x turn) (once func(), m *Machine) {
	m = leading(15)
	m.names.statements.set("s", &statement{known: true, parsed: parseConfirmed})
	var up gate.Plan
	var down gate.Segments
	var scratch []byte
	return func() {
		up.Reset(x.client)
		if n, need, err := m.FromClient(x.client, &up); n != len(x.client) || need.Kind != NeedNothing || err != nil {
			tb.Fatal(n, need, err)
		}
		_, scratch = up.Bytes(scratch)
		down.Reset(x.server)
		if n, _, err := m.FromServer(x.server, &down); n != len(x.server) || err != nil {
			tb.Fatal(n, err)
		}
		_, scratch = down.Bytes(scratch)
	}, m
}

// BenchmarkMachine measures what the protocol costs per transaction, without
// any socket.
func BenchmarkMachine(b *testing.B) {
	for _, x := range turns() {
		b.Run(x.name, func(b *testing.B) {
			once, m := exchanges(b, x)
			b.ReportAllocs()
			for b.Loop() {
				once()
			}
			if !m.pendingReplies.empty() {
				b.Fatal("something is owed at the end")
			}
		})
	}
}

// TestTheHotPathAllocatesNothing: only a Parse allocates, for what is kept of the statement.
func TestTheHotPathAllocatesNothing(t *testing.T) {
	for _, x := range turns() {
		once, _ := exchanges(t, x)
		want := 0.0
		if x.name == "extended" {
			want = 2
		}
		if got := testing.AllocsPerRun(100, once); got != want {
			t.Errorf("%s: %v allocations, want %v", x.name, got, want)
		}
	}
}

// TestManyTransactionsCostTheirLength: a text of four times as many transactions costs about four
// times as much, and not sixteen times. What counts is the processor time of the cheapest of
// several runs. The test is not parallel: others take such time.
func TestManyTransactionsCostTheirLength(t *testing.T) {
	const runs, most = 5, 8
	least := map[int]time.Duration{}
	for range runs {
		for _, count := range []int{1000, 4000} {
			began := processorTime(t)
			manyTransactions(t, count)
			if cost := processorTime(t) - began; least[count] == 0 || cost < least[count] {
				least[count] = cost
			}
		}
	}
	few, many := least[1000], least[4000]
	t.Logf("1000 transactions: %v, 4000 transactions: %v", few, many)
	if many > most*few {
		t.Errorf("4000 transactions cost %v, more than %d times the %v of 1000", many, most, few)
	}
}

// manyTransactions has a new machine take one Query of so many transactions.
func manyTransactions(t *testing.T, count int) {
	t.Helper()
	in := wiretest.Query(strings.Repeat("commit;select 1;", count) + "select 2")
	m := leading(18)
	var up gate.Plan
	for {
		up.Reset(in)
		_, need, err := m.FromClient(in, &up)
		switch {
		case err != nil:
			t.Fatal(err)
		case need.Kind == NeedNothing:
			return
		case need.Kind == NeedAnalysis:
			m.Answer(Answer{Need: NeedAnalysis, Text: m.config.Cache.Analyze(need.Text, need.Settings)})
		default:
			t.Fatalf("need %v", need)
		}
	}
}

// processorTime is what this process has used of the processors.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
