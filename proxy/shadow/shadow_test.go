package shadow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// The statuses of a worker.
var (
	leads      = &fencing.Status{Role: fencing.Leader, Epoch: 3, Holder: fencing.Record{Epoch: 3, Worker: "w"}}
	follows    = &fencing.Status{Holder: fencing.Record{Epoch: 3, Worker: "other"}}
	vacant     = &fencing.Status{Vacant: true}
	lapsed     = &fencing.Status{Lapsed: true, Epoch: 3, Holder: fencing.Record{Epoch: 3, Worker: "w"}}
	superseded = &fencing.Status{Role: fencing.Superseded, Epoch: 3, Holder: fencing.Record{Epoch: 4, Worker: "other"}}
	faulty     = &fencing.Status{Role: fencing.Leader, Epoch: 3, Fault: fmt.Errorf("no schema")}
)

// watched is a Watch whose session a test plays.
type watched struct {
	*Watch
	status    *fencing.Status
	campaigns int
}

func watch(version gate.Version, st *fencing.Status, announced fencing.Epoch) *watched {
	w := &watched{status: st}
	w.Watch = New(Config{
		Resource: "r", Worker: "w", Version: version, Cache: sqltext.NewCache(1 << 20),
		Status: func() *fencing.Status { return w.status }, Trouble: func() *fencing.Trouble { return nil },
		Campaign: func() { w.campaigns++ }, Announced: announced,
	})
	return w
}

// sends has the client send messages.
func (w *watched) sends(messages ...[]byte) {
	for _, b := range messages {
		for len(b) > 0 {
			f, _, _ := wire.PeekFrame(b)
			w.ClientSent(f.Type, b[wire.HeaderLen:f.Size], sqltext.DefaultSettings)
			b = b[f.Size:]
		}
	}
}

// does has the client send messages, and the server answer them.
func (w *watched) does(status byte, messages ...[]byte) {
	w.sends(messages...)
	w.Ready(status)
}

// lines returns what was found: SQLSTATE, whether it is a write, and the statement.
func (w *watched) lines() (lines []string) {
	for _, r := range w.Found() {
		kind := "read"
		if r.Write {
			kind = "write"
		}
		lines = append(lines, strings.TrimSpace(r.SQLState+" "+kind+" "+r.Statement))
	}
	return lines
}

func (w *watched) expect(t *testing.T, want ...string) {
	t.Helper()
	if got := w.lines(); !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestWhatIsFound of a text in a Query, for each status of the worker.
func TestWhatIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status    *fencing.Status
		announced fencing.Epoch
		state     string // of a write
	}{
		{leads, 3, ""}, {leads, 0, "ZF003"}, {leads, 2, "ZF001"}, {follows, 0, "ZF002"}, {lapsed, 3, "ZF002"}, {superseded, 3, "ZF001"},
		{faulty, 3, "ZF004"}, {vacant, 0, ""},
	} {
		for _, text := range []string{
			"insert into t values (1)", "update t set v = 1", "delete from t", "merge into t using u on true when matched then do nothing",
			"with d as (delete from t returning *) select * from d", "select * from t for update", "vacuum", "create table u ()", "notify n",
			"select 1; truncate t", "do 'begin end'", "call p()", "copy t from stdin", "prepare p as delete from t", "explain analyze delete from t",
			"commit prepared 'x'", "no SQL", "select " + strings.Repeat("1,", maxAnalyzed),
		} {
			w := watch(18, c.status, c.announced)
			w.does('I', Q(text))
			if c.state == "" {
				w.expect(t)
			} else {
				w.expect(t, c.state+" write "+text[:min(len(text), maxText)])
			}
		}
		for _, text := range []string{
			"", "select 1", "begin; commit", "show all", "set a.b = 1", "discard all", "deallocate all", "listen n", "savepoint s", "prepare p as select 1",
			"declare c cursor for select 1", "explain delete from t", "copy t to stdout", "set fencepost.token = '5'", "rollback",
		} {
			w := watch(15, c.status, c.announced)
			w.does('I', Q(text))
			w.expect(t)
		}
		for version, state := range map[gate.Version]string{15: c.state, 16: ""} {
			w := watch(version, c.status, c.announced)
			w.does('T', Q("begin"))
			w.does('T', Q("lock t in access share mode"))
			if got := w.lines(); (len(got) > 0) != (state != "") {
				t.Errorf("version %d, %s: %q", version, c.status.Role, got)
			}
		}
		w := watch(18, c.status, c.announced)
		w.sends(wiretest.Msg('Q', []byte("delete from t\x00;\x00"))) // the server rejects it
		w.expect(t)
		w.Ready('I')
		w.does('I', wiretest.Msg('F', []byte{0, 0, 0, 1}))
		if got := w.lines(); (len(got) > 0) != (c.state != "") {
			t.Errorf("%s, a fast path call: %q", c.status.Role, got)
		}
		w.does('I', Q("prepare transaction 'x'"))
		w.expect(t, "ZF005 write prepare transaction 'x'")
	}
}

// TestATransactionIsRecordedOnce, however its messages come.
func TestATransactionIsRecordedOnce(t *testing.T) {
	t.Parallel()
	const first, second, one, two = "delete from t", "truncate t", "ZF001 write delete from t", "ZF001 write truncate t"
	for name, c := range map[string]struct {
		plays func(w *watched)
		want  []string
	}{
		"a block": {func(w *watched) {
			w.does('T', Q("begin"))
			w.does('T', Q(first))
			w.does('T', Batch(Run(second)))
			w.does('I', Q("commit"))
			w.does('I', Q(second))
		}, []string{one, two}},
		"a block in a pipeline": {func(w *watched) {
			w.sends(Q("begin"), Q(first), Q(second), Q("commit"), Q(second))
		}, []string{one, two}},
		"a pipeline of batches": {func(w *watched) { w.sends(Batch(Run(first)), Batch(Run(second))) }, []string{one, two}},
		"a batch":               {func(w *watched) { w.sends(Batch(Run(first), Run(second))) }, []string{one}},
		"a batch with COMMIT":   {func(w *watched) { w.sends(Batch(Run(first), Run("commit"), Run(second))) }, []string{one, two}},
		"one text":              {func(w *watched) { w.sends(Q(first + ";" + second)) }, []string{one + ";" + second}},
		"a chain": {func(w *watched) {
			w.does('T', Q("begin"))
			w.does('T', Q(first))
			w.does('T', Q("commit and chain"))
			w.does('T', Q(second))
			w.does('T', Q(first))
		}, []string{one, two}},
		"a failed block": {func(w *watched) {
			w.does('T', Q("begin"))
			w.does('E', Q("nonsense"))
			w.Found()
			w.does('E', Q("set fencepost.epoch = 4"))
			w.does('E', Q(first))
			w.does('I', Q("rollback"))
			w.does('I', Q(second))
		}, []string{two}},
		"back to a savepoint": {func(w *watched) {
			w.does('T', Q("begin"))
			w.does('T', Q("savepoint s"))
			w.does('E', Q("select 1 / 0"))
			w.does('E', Q(first))
			w.does('T', Q("rollback to s; "+second))
		}, []string{"ZF001 write rollback to s; " + second}},
	} {
		w := watch(18, superseded, 3)
		c.plays(w)
		if got := w.lines(); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}

// TestATransactionThatOutlivesItsEpoch: whatever its client sends next is recorded, once, but for ROLLBACK.
func TestATransactionThatOutlivesItsEpoch(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, next []byte
		status       byte // after before
		want         []string
	}{
		"COMMIT of a write":    {Q("begin; delete from t"), Q("commit"), 'T', []string{"ZF001 write commit"}},
		"COMMIT of reads":      {Q("begin; select 1"), Q("commit"), 'T', []string{"ZF001 read commit"}},
		"a write":              {Q("begin"), Q("delete from t"), 'T', []string{"ZF001 write delete from t"}},
		"a read by message":    {Q("begin"), Batch(Run("select 1")), 'T', []string{"ZF001 read select 1"}},
		"ROLLBACK":             {Q("begin; delete from t"), Q("rollback"), 'T', nil},
		"a failed transaction": {Q("begin; delete from t"), Q("commit"), 'E', nil},
		"a later transaction":  {Q("delete from t"), Q("select 1"), 'I', nil},
	} {
		w := watch(18, leads, 3)
		w.does(c.status, c.before)
		w.expect(t)
		w.status = superseded
		w.sends(c.next, c.next)
		got := w.Found()
		lines := make([]string, 0, len(got))
		for _, r := range got {
			w.found = append(w.found, r)
			if !strings.Contains(r.Message, "the grant would have waited") {
				t.Errorf("%s: %s", name, r.Message)
			}
		}
		if lines = append(lines, w.lines()...); !slices.Equal(lines, c.want) {
			t.Errorf("%s: found %q, want %q", name, lines, c.want)
		}
	}
	w := watch(18, leads, 3)
	w.does('T', Q("begin"))
	w.status = lapsed
	w.does('I', Q("delete from t; commit")) // its backend is registered
	w.does('T', Q("begin"))
	w.status = leads
	w.does('T', Q("delete from t"))
	w.expect(t)
}

// TestWhichEpochTheClientKnows: by SET, by SHOW, and by the refusal that it does not get. It counts from the next
// transaction on.
func TestWhichEpochTheClientKnows(t *testing.T) {
	t.Parallel()
	const write = "delete from t"
	for first, want := range map[string][]string{
		write:                            {"ZF003 write " + write},
		"set fencepost.epoch = 3":        nil,
		"set fencepost.epoch = 2":        {"ZF001 write " + write, "ZF001 write " + write},
		"set fencepost.epoch = nonsense": {"ZF003 write " + write},
		"show fencepost.epoch":           nil,
		"show fencepost.role":            nil,
		"show fencepost.worker":          {"ZF003 write " + write},
		"set fencepost.epoch = 3; " + write + "; " + write: {"ZF003 write set fencepost.epoch = 3; " + write + "; " + write},
	} {
		w := watch(18, leads, 0)
		w.does('I', Q(first))
		if first != write {
			w.does('I', Q(write))
		}
		w.does('I', Q(write))
		if got := w.lines(); !slices.Equal(got, want) {
			t.Errorf("%s: found %q, want %q", first, got, want)
		}
	}
	w := watch(18, leads, 3)
	w.status = follows
	w.does('I', Q("show fencepost.role"))
	w.status = leads
	w.does('I', Q(write))
	w.expect(t, "ZF003 write "+write)
}

// TestAVacantLeaseIsTried by a write, and by a SHOW of the role.
func TestAVacantLeaseIsTried(t *testing.T) {
	t.Parallel()
	w := watch(18, vacant, 0)
	w.does('I', Q("select 1"))
	w.does('I', Q("delete from t"))
	w.does('I', Q("show fencepost.role"))
	w.expect(t)
	if w.campaigns != 2 {
		t.Errorf("%d attempts, want 2", w.campaigns)
	}
}

// TestPreparedStatements count when they are executed, by a message or by SQL.
func TestPreparedStatements(t *testing.T) {
	t.Parallel()
	w := watch(18, follows, 0)
	w.does('I', wiretest.Parse("w", "delete from t"), wiretest.Parse("r", "select 1"), wiretest.Parse("two", "delete from t; delete from t"), wiretest.Parse("e", "execute w"), wiretest.Sync())
	w.does('I', Q("prepare s as delete from t"))
	w.expect(t, "ZF002 write prepare s as delete from t") // PREPARE itself is refused
	w.does('I', Q("prepare q as select 1"))
	executes := func(name string, want ...string) {
		t.Helper()
		w.does('I', wiretest.Bind("p", name), wiretest.Execute("p", 0), wiretest.Execute("p", 0), wiretest.Sync())
		w.expect(t, want...)
		w.does('I', Q("execute "+name))
		for i := range want {
			want[i] = "ZF002 write execute " + name
		}
		w.expect(t, want...)
	}
	executes("w", "ZF002 write delete from t")
	executes("r")
	executes("two")
	executes("e", "ZF002 write execute w")
	executes("s", "ZF002 write prepare s as delete from t")
	executes("q")
	executes("none", "ZF002 write")
	w.does('I', Q("deallocate r"))
	executes("r", "ZF002 write")
	w.does('I', wiretest.Close('S', "q"), wiretest.Sync())
	executes("q", "ZF002 write")
	w.does('I', Q("discard all"))
	executes("two", "ZF002 write")

	// A portal ends with its transaction, and by Close.
	w.does('I', wiretest.Parse("", "select 1"), wiretest.Bind("p", ""), wiretest.Sync())
	w.does('I', wiretest.Execute("p", 0), wiretest.Sync())
	w.expect(t, "ZF002 write")
	w.does('I', wiretest.Parse("", "select 1"), wiretest.Bind("p", ""), wiretest.Close('P', "p"), wiretest.Execute("p", 0), wiretest.Sync())
	w.expect(t, "ZF002 write")

	// As with enforce: on, names are cut as the server cuts them.
	long := strings.Repeat("n", 70)
	w.does('I', wiretest.Parse(long, "select 1"), wiretest.Bind("", long[:63]), wiretest.Execute("", 0), wiretest.Sync())
	w.expect(t)
}

// TestWhatIsKeptIsBounded, whatever a client prepares and binds.
func TestWhatIsKeptIsBounded(t *testing.T) {
	t.Parallel()
	w := watch(18, follows, 0)
	long := "delete from t where v = '" + strings.Repeat("x", 2*maxText) + "'"
	for i := range 2 * maxNames {
		w.sends(wiretest.Parse(strconv.Itoa(i), long), wiretest.Bind(strconv.Itoa(i), strconv.Itoa(i)))
	}
	if n, p := len(w.names.byName), len(w.portals.byName); n != maxNames || p != maxPortals || w.names.size > maxTexts || w.portals.size > maxTexts {
		t.Errorf("%d statements with %d bytes, %d portals with %d", n, w.names.size, p, w.portals.size)
	}
	w.sends(wiretest.Execute("0", 0), wiretest.Sync())
	w.expect(t, "ZF002 write "+long[:maxText])
	w.sends(Q("deallocate all"), wiretest.Parse("0", long), wiretest.Parse("0", "select 1"), wiretest.Close('S', "0"))
	if w.names.size != 0 || len(w.names.byName) != 0 {
		t.Errorf("%d bytes of %d statements are left", w.names.size, len(w.names.byName))
	}
}

// TestNoMessageIsTooShort: what the server rejects does no harm.
func TestNoMessageIsTooShort(t *testing.T) {
	t.Parallel()
	w := watch(18, follows, 0)
	for _, typ := range []byte("QPBDECFSHdcfX\x00") {
		for _, body := range []string{"", "\x00", "S", "Sx", "P\x00", "x\x00y"} {
			w.ClientSent(typ, []byte(body), sqltext.Settings{})
		}
		w.Ready('I')
	}
}

// TestTheKindOfAStatement is the verb of the statement that would be refused, wherever its text is.
func TestTheKindOfAStatement(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"insert into t values (1)": "INSERT", "select 1; /* a */ -- b\n trUncate t": "TRUNCATE", "with d as (select 1) merge into t using d on true when matched then do nothing": "MERGE",
		"with d as (delete from t returning *) select * from d": "SELECT", "(select * from t for update)": "SELECT", "create table u as select 1": "CREATE",
		"copy t from stdin": "COPY", "call p()": "CALL", "explain analyze delete from t": "EXPLAIN", "no SQL": "", "prepare transaction 'x'": "PREPARE",
	} {
		w := watch(18, follows, 0)
		w.does('I', Q(text))
		if found := w.Found(); len(found) != 1 || found[0].Verb != want {
			t.Errorf("%s: %+v, want %q", text, found, want)
		}
	}
	w := watch(18, follows, 0)
	w.does('I', wiretest.Parse("m", "delete from t"), wiretest.Sync())
	w.does('I', Q("prepare s as delete from t"))
	w.does('I', Q("execute m"))
	w.does('I', Q("execute s"))
	w.does('I', wiretest.Bind("", "m"), wiretest.Execute("", 0), wiretest.Sync())
	w.does('I', wiretest.Bind("", "none"), wiretest.Execute("", 0), wiretest.Sync())
	w.does('I', wiretest.Msg('F', []byte{0, 0, 0, 1}))
	var got []string
	for _, r := range w.Found() {
		got = append(got, r.Verb)
	}
	if want := []string{"PREPARE", "DELETE", "EXECUTE", "DELETE", "", fencing.VerbFunction}; !slices.Equal(got, want) {
		t.Errorf("the kinds are %q, want %q", got, want)
	}
}
