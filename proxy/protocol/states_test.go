package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

// TestBatchProgress: what was sent moves a batch on and never back, but for the end of
// its transaction.
func TestBatchProgress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		steps []func(*batch)
		want  batch
	}{
		{"nothing", nil, batch{}},
		{"a Parse after the check", []func(*batch){(*batch).checked, (*batch).sent}, batch{progress: batchChecked}},
		{"a check after an Execute", []func(*batch){(*batch).ran, (*batch).checked}, batch{progress: batchRan, unsynced: surelyUnsynced}},
		{"a COMMIT", []func(*batch){(*batch).ran, (*batch).committed}, batch{progress: batchOpen}},
		{"a COMMIT alone", []func(*batch){(*batch).committed}, batch{}},
		{"a Query after an Execute", []func(*batch){(*batch).ran, (*batch).end}, batch{id: 1, unsynced: surelyUnsynced, skipping: true}},
		{"two Queries", []func(*batch){(*batch).end, (*batch).end}, batch{id: 2}},
		{"a Sync", []func(*batch){(*batch).ran, (*batch).end, (*batch).synced}, batch{id: 1, ended: surelyUnsynced}},
		{"a Sync of Fencepost's", []func(*batch){(*batch).checked, (*batch).syncedBefore}, batch{}},
	} {
		var b batch
		for _, step := range c.steps {
			step(&b)
		}
		if b != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, b, c.want)
		}
	}
}

// TestWaits: what the message in hand waits for, and what an error makes of that.
func TestWaits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		begins, answered, fails wait
	}{
		{noWait, noWait, noWait},
		{waitsForReplies, waitsForReplies, waitsForReplies},
		{waitsForOwn, noWait, ownFailed},
		{waitsForFlush, waitsForFlush, flushFailed},
	} {
		var w wait
		if c.begins != noWait {
			w.begin(c.begins)
			w.begin(c.begins) // the message comes again
		}
		own, failed := w, w
		if own.answeredOwn(); own != c.answered {
			t.Errorf("%d is %d once what Fencepost has sent is answered, want %d", w, own, c.answered)
		}
		if failed.fails(); failed != c.fails {
			t.Errorf("%d is %d after an error, want %d", w, failed, c.fails)
		}
		if failed.fails(); failed != c.fails {
			t.Errorf("%d is %d after two errors, want %d", w, failed, c.fails)
		}
		if failed.answered(); failed != noWait {
			t.Errorf("%d is %d once all is answered", w, failed)
		}
	}
}

// TestFates is the table of what becomes of a message after what it has waited for.
func TestFates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		progress progress
		wait     wait
		types    string
		want     fate
		after    progress
	}{
		{batchEmpty, noWait, "QFPBDECHSXdcf", goesOn, batchEmpty},
		{batchRan, waitsForReplies, "QFPBDECHSX", goesOn, batchRan},
		{batchRan, waitsForOwn, "QFPBDECHSX", goesOn, batchRan},
		{batchOpen, waitsForFlush, "QF", goesOn, batchOpen},
		{batchOpen, ownFailed, "QF", replaced, batchOpen},
		{batchOpen, ownFailed, "PBDECH", leftOut, batchFailed},
		{batchEmpty, ownFailed, "P", leftOut, batchFailed},
		{batchOpen, ownFailed, "SX", goesOn, batchFailed},
		{batchOpen, flushFailed, "QFPBDECH", leftOut, batchFailed},
		{batchOpen, flushFailed, "SX", goesOn, batchFailed},
		{batchFailed, noWait, "QFPBDECHdcf", leftOut, batchFailed},
		{batchFailed, noWait, "SX", goesOn, batchFailed},
	} {
		for _, typ := range []byte(c.types) {
			b := batch{progress: c.progress}
			if got := b.follow(c.wait, typ); got != c.want || b.progress != c.after {
				t.Errorf("progress %d, wait %d, %c: fate %d and progress %d, want %d and %d", c.progress, c.wait, typ, got, b.progress, c.want, c.after)
			}
		}
	}
	b := batch{progress: batchFailed}
	if b.end(); b.progress != batchEmpty || !b.skipping {
		t.Errorf("after its end, a batch that has failed is %+v", b)
	}
}

// TestStatesRefuse: a transition that cannot be is a bug.
func TestStatesRefuse(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(){
		"a direction that is muted ends":        func() { var p phase; p.mute(); p.end(ErrSurprise) },
		"a direction that has ended is mute":    func() { var p phase; p.end(ErrSurprise); p.mute() },
		"a message inside another":              func() { var b passthrough; b.begin(1, false); b.begin(1, false) },
		"a Sync after the client's Execute":     func() { var b batch; b.ran(); b.syncedBefore() },
		"an Execute of a batch that has failed": func() { b := batch{progress: batchFailed}; b.ran() },
		"a COMMIT of a batch that has failed":   func() { b := batch{progress: batchFailed}; b.committed() },
		"a message that waits for two things":   func() { w := waitsForOwn; w.begin(waitsForReplies) },
		"a message that waits after an error":   func() { w := ownFailed; w.begin(waitsForOwn) },
		"a message that waits for nothing":      func() { var w wait; w.begin(noWait) },
		"a message that begins with an error":   func() { var w wait; w.begin(ownFailed) },
		"checks that were not sent":             func() { var c checks; c.confirm() },
		"checks that are prepared twice":        func() { c := checks{progress: checksConfirmed}; c.confirm() },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			do()
		}()
	}
}

// TestCopyThatCannotBe: a COPY that completes before its data, or begins inside another,
// is no reply to anything.
func TestCopyThatCannotBe(t *testing.T) {
	t.Parallel()
	begins := wiretest.Msg('G', []byte{0, 0, 0})
	for name, second := range map[string][]byte{"complete": wiretest.Msg('C', []byte("COPY 1\x00")), "inside": begins} {
		m := fuzzMachine(ModePassing, unknownStatus)
		pumpUp(t, m, wiretest.Query("copy t from stdin"), 1<<20)
		if _, taken := pumpDown(t, m, begins, 1<<20); taken != len(begins) {
			t.Fatalf("%s: the COPY does not begin", name)
		}
		var down gate.Segments
		down.Reset(second)
		if _, _, err := m.FromServer(second, &down); !errors.Is(err, ErrSurprise) {
			t.Errorf("%s: %v, want %v", name, err, ErrSurprise)
		}
	}
}

// TestNothingIsAnsweredByReadyForQueryAlone: Postgres answers a Query and a fast path call before it is ready. If it
// is ready before, a reply is counted for another message, and the session ends.
func TestNothingIsAnsweredByReadyForQueryAlone(t *testing.T) {
	t.Parallel()
	ready := wiretest.Msg('Z', []byte{'I'})
	for name, k := range map[string]kind{"Query": query, "fast path call": function} {
		for _, before := range [][]byte{nil, wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C22012\x00Mno\x00\x00"))} {
			m := fuzzMachine(ModePassing, unknownStatus)
			m.pendingReplies.push(k, fromClient)
			in := join(before, ready)
			var down gate.Segments
			down.Reset(in)
			if _, _, err := m.FromServer(in, &down); errors.Is(err, ErrSurprise) != (before == nil) {
				t.Errorf("%s, after %q: %v", name, before, err)
			}
		}
	}
}

func TestPanicEndsItsOwnSession(t *testing.T) {
	t.Parallel()
	m := leading(15)
	m.config.Status = func() *fencing.Status { panic("a bug") }
	var up gate.Plan
	in := wiretest.Query("insert into t values (1)")
	up.Reset(in)
	if _, _, err := m.FromClient(in, &up); !errors.Is(err, ErrBug) {
		t.Errorf("the client's side: %v, want errBug", err)
	}
	m = leading(15)
	m.down.reported = nil
	m.pendingReplies.push(syncing, fromClient)
	m.config.Status = func() *fencing.Status { panic("a bug") }
	in = wiretest.Msg('Z', []byte{'I'})
	var down gate.Segments
	down.Reset(in)
	if _, _, err := m.FromServer(in, &down); !errors.Is(err, ErrBug) {
		t.Errorf("the server's side: %v, want errBug", err)
	}
}

// TestAnnouncedInATransaction: what was announced counts from the next transaction on,
// also where that has begun with the end of the last one.
func TestAnnouncedInATransaction(t *testing.T) {
	t.Parallel()
	var a announced
	want := func(epoch fencing.Epoch, when string) {
		t.Helper()
		if a.inHand.announced != epoch {
			t.Errorf("%s: epoch %d counts, want %d", when, a.inHand.announced, epoch)
		}
	}
	a.begins()
	a.expect(5)
	a.settle()
	want(0, "announced in a transaction")
	c := chain{imported: true}
	a.endsIn(1, c)
	c = chain{}
	first := a.inHand
	want(5, "after a COMMIT that was sent")
	a.mayGoOn(1, &c)
	want(5, "after a ROLLBACK TO in the same batch, which runs only if the COMMIT has run")
	a.mayGoOn(2, &c)
	want(0, "after a ROLLBACK TO in the next batch")
	if !c.imported || c.had != 0 {
		t.Errorf("the chain of the transaction that goes on is %+v", c)
	}
	if !a.confirm(first) || a.confirm(first) {
		t.Error("the COMMIT is confirmed, and it is not confirmed once")
	}
	want(5, "after the COMMIT has run")
	a.mayGoOn(3, &c)
	want(5, "after a ROLLBACK TO in the next transaction")
	old := a.inHand
	a.endsIn(3, c)
	a.unsure(&c)
	a.mayGoOn(3, &c)
	if a.inHand != old {
		t.Error("a COMMIT of which it is unsure that it has run began a transaction")
	}
	a.endsIn(3, c)
	second := a.inHand
	a.confirm(second)
	a.endsIn(4, c)
	a.endsIn(4, chain{})
	a.confirm(transaction{number: second.number + 1})
	c = chain{}
	if a.mayGoOn(5, &c); !c.imported || c.had&hadWork == 0 {
		t.Errorf("a chain that is not known is taken for %+v", c)
	}
	second = a.inHand
	if a.confirm(old) || a.inHand != second {
		t.Error("an earlier transaction is in hand again")
	}
}

// TestPortalsEndWithTheirTransaction: a session that is never at rest keeps none of the
// portals of transactions that are over.
func TestPortalsEndWithTheirTransaction(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeReadOnly, unknownStatus)
	pumpUp(t, m, wiretest.Query("begin"), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('C', []byte("BEGIN\x00")), wiretest.Msg('Z', []byte("T"))...), 1<<20)
	const each = 10
	for round := range 20 {
		var in, out []byte
		in = append(in, wiretest.Parse("", "show work_mem")...)
		out = append(out, wiretest.Msg('1')...)
		for i := range each {
			in = append(in, wiretest.Bind(fmt.Sprint("portal", round*each+i), "")...)
			out = append(out, wiretest.Msg('2')...)
		}
		in = append(append(in, wiretest.Parse("", "commit and chain")...), wiretest.Bind("c", "")...)
		in = append(append(in, wiretest.Execute("c", 0)...), wiretest.Sync()...)
		out = append(append(out, wiretest.Msg('1')...), wiretest.Msg('2')...)
		out = append(append(out, wiretest.Msg('C', []byte("COMMIT\x00"))...), wiretest.Msg('Z', []byte("T"))...)
		pumpUp(t, m, in, 1<<20)
		answerOurs(t, m)
		if got, _ := pumpDown(t, m, out, 1<<20); !bytes.Equal(got, out) {
			t.Fatalf("the client gets %q of %q", got, out)
		}
		if n := len(m.names.portals.byName); n != 0 {
			t.Fatalf("%d portals are kept after %d transactions", n, round+1)
		}
	}
}

// TestAPortalSurvivesAnEarlierEnd: a ROLLBACK that was sent before a Bind is answered after
// it, and in between stands an Execute that may have revived the transaction. The portal
// that the Bind makes is not of the transaction that the ROLLBACK has ended.
func TestAPortalSurvivesAnEarlierEnd(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	pumpUp(t, m, bytes.Join([][]byte{
		wiretest.Query("rollback"), wiretest.Parse("s", "show work_mem"), wiretest.Execute("", 0), wiretest.Sync(),
		wiretest.Parse("", "declare c cursor for select 1"), wiretest.Bind("", ""),
	}, nil), 1<<20)
	out := bytes.Join([][]byte{wiretest.Msg('C', []byte("ROLLBACK\x00")), wiretest.Msg('Z', []byte("I"))}, nil)
	if _, taken := pumpDown(t, m, out, 1<<20); taken != len(out) {
		t.Fatalf("the machine takes %d bytes of %q", taken, out)
	}
	if s := m.names.portals.get(nil).stmt; s == nil || !s.requiresBlock() {
		t.Errorf("the portal holds %+v, want the DECLARE", s)
	}
}

// TestTheCheckInFrontIsForItsEpoch: the check without parameters is prepared again, under another
// name, for another epoch, and never stands for another one. An epoch that cannot be written under
// changes nothing.
func TestTheCheckInFrontIsForItsEpoch(t *testing.T) {
	t.Parallel()
	c := newChecks(1, "w", "w#1", false)
	prepare := func() (sql string, names checkNames) {
		c.appendPrepare(nil, 0, ownAhead, new(replyQueue).push)
		c.confirm()
		return c.frontSQL, c.names
	}
	leads := func(e fencing.Epoch) *fencing.Status { return &fencing.Status{Role: fencing.Leader, Epoch: e} }
	short := func(told, held fencing.Epoch) bool {
		c.build(told, held)
		return bytes.Equal(c.text(fullCheck, true), []byte("EXECUTE "+c.names.front+";"))
	}

	c.follow(leads(3))
	sql, names := prepare()
	if !strings.Contains(sql, " 3::pg_catalog.int8, 3::pg_catalog.int8)") {
		t.Errorf("the check in front is %s, want one of epoch 3", sql)
	}
	if !short(3, 3) || short(4, 4) || short(3, 4) || short(0, 0) {
		t.Error("the check in front is used for another epoch than its own, or not for that")
	}
	c.follow(&fencing.Status{Role: fencing.Follower, Epoch: 5})
	if c.names != names || !c.prepared() {
		t.Error("an epoch under which nothing can be written has the checks prepared again")
	}
	c.follow(leads(5))
	if c.prepared() {
		t.Fatal("the checks are not prepared again for another epoch")
	}
	if sql, again := prepare(); again == names || !strings.Contains(sql, " 5::pg_catalog.int8, 5::pg_catalog.int8)") {
		t.Errorf("the check in front is %s under the name %s, want one of epoch 5 under a new name", sql, again.front)
	}
	if !short(5, 5) || short(3, 3) {
		t.Error("the check in front is used for the epoch before, or not for its own")
	}
}

// TestAChoiceThatFailsBehindAClaim: the session claims its epoch in a batch of Fencepost's in front of a SET of
// fencepost.resource, whose ReadyForQuery says nothing of the SET. That fails, so nothing is chosen.
func TestAChoiceThatFailsBehindAClaim(t *testing.T) {
	t.Parallel()
	own := &fencing.Status{Role: fencing.Leader, Epoch: 5, Holder: fencing.Record{Epoch: 5, Worker: "w", Guards: 1}}
	other := &fencing.Status{Role: fencing.Leader, Epoch: 3, Holder: fencing.Record{Epoch: 3, Worker: "w"}}
	m := fuzzMachine(ModeFenced, own)
	set, taken, sent := wiretest.Query("set fencepost.resource = 'b'"), 0, []byte(nil)
	for taken < len(set) {
		var p gate.Plan
		p.Reset(set)
		n, need, err := m.FromClient(set, &p)
		if err != nil || n == 0 && need.Kind != NeedJoin {
			t.Fatalf("the machine took %d bytes, needs %v: %v", n, need.Kind, err)
		}
		if taken = n; need.Kind == NeedJoin {
			m.Answer(Answer{Need: NeedJoin, Chosen: []Chosen{{Resource: "b", Announced: 3,
				Candidacy: Candidacy{Fence: 8, Resource: "b", Incarnation: "ib", Status: func() *fencing.Status { return other }}}}})
		}
		out, _ := p.Bytes(nil)
		sent = append(sent, out...)
	}
	if at := bytes.IndexByte(sent, 'Q'); !bytes.Contains(sent[:max(at, 0)], []byte("fencepost.claim_")) {
		t.Fatalf("no claim in front of the SET: %q", sent)
	}
	canceled := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to user request\x00\x00"))
	ready := wiretest.Msg('Z', []byte("I"))
	claimed := join(wiretest.Msg('3'), wiretest.Msg('1'), wiretest.Msg('2'), wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('3'), wiretest.Msg('3'), ready)
	got, _ := pumpDown(t, m, join(claimed, canceled, ready), 1<<20)
	if !bytes.HasPrefix(got, canceled) || bytes.Contains(got, []byte("fencepost.resource\x00b\x00")) || m.epochs.choices.base != nil {
		t.Errorf("the client is told %q, and %v is chosen", got, m.epochs.choices.base)
	}
}
