package protocol

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// TestMessagesThatHaveNoPlaceInACopyAreNotWaitedFor: the server ends the connection over
// them, so nothing waits for their replies without end.
func TestMessagesThatHaveNoPlaceInACopyAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	m := leading(15)
	pumpUp(t, m, wiretest.Query("copy t from stdin"), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('G', []byte{0, 0, 0})...), 1<<20)
	in := append(wiretest.Parse("s", "insert into t values (1)"), wiretest.Query("vacuum t")...)
	var p gate.Plan
	for range 10 {
		p.Reset(in)
		n, need, err := m.FromClient(in, &p)
		if err != nil {
			t.Fatal(err)
		}
		in = in[n:]
		switch need.Kind {
		case NeedNothing:
			return
		case NeedRegister:
			m.Answer(Answer{Need: NeedRegister})
		case NeedRoom:
			if m.Is(Ready) {
				t.Fatal("it needs room, and has it")
			}
			return
		default:
			t.Fatalf("need %v", need)
		}
	}
	t.Error("it does not end")
}

// TestAQueryBehindACopyThatHasFailed: 18 would leave open what the check has begun, and a failure
// behind the Query would undo what its client was told is done. The COPY has failed, which is not
// known yet.
func TestAQueryBehindACopyThatHasFailed(t *testing.T) {
	t.Parallel()
	m := leading(18)
	pumpUp(t, m, wiretest.Query("copy t from stdin"), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('G', []byte{0, 0, 0})...), 1<<20)
	pumpUp(t, m, wiretest.Parse("s", "insert into t values (1)"), 1<<20)
	query := wiretest.Query("insert into t values (2)")
	var p gate.Plan
	p.Reset(query)
	if n, need, err := m.FromClient(query, &p); n != 0 || need.Kind != NeedRoom || err != nil || m.Is(Ready) {
		t.Fatalf("%d bytes are taken, need %v, %v; want that the Query waits for the answers", n, need, err)
	}
	pumpDown(t, m, bytes.Join([][]byte{
		wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C22P04\x00Mextra data after last expected column\x00WCOPY t, line 1: \"a\"\x00\x00")), wiretest.Msg('Z', []byte{'I'}),
		wiretest.Msg('2'), wiretest.Msg('D', []byte{0, 1, 0xff, 0xff, 0xff, 0xff}), wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('3'), wiretest.Msg('1'),
	}, nil), 1<<20)
	if sent := pumpUp(t, m, query, 1<<20); !bytes.Equal(sent, wiretest.Sync()) {
		t.Fatalf("%q is sent, want a Sync in front of the Query", sent)
	}
	pumpDown(t, m, wiretest.Msg('Z', []byte{'I'}), 1<<20)
	if sent := pumpUp(t, m, query, 1<<20); !bytes.Contains(sent, []byte("insert into t values (2)")) {
		t.Errorf("%q is sent, want the Query", sent)
	}
}

// TestAnErrorAtAStrayMessageOfCopy: if a message of COPY outside a COPY is answered by an
// error, ReadyForQuery follows, and the server skips nothing. Were that taken for the answer to what
// was sent behind it, the machine would be ahead of the server: it would know of a failed block that
// is over, where nothing is checked.
func TestAnErrorAtAStrayMessageOfCopy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent []byte
		ends bool
	}{
		"a Flush":                   {wiretest.Flush(), false},
		"CopyDone":                  {wiretest.CopyDone(), true},
		"CopyDone behind a Flush":   {append(wiretest.Flush(), wiretest.CopyDone()...), true},
		"CopyData before a Flush":   {append(wiretest.CopyData("x"), wiretest.Flush()...), true},
		"nothing":                   {nil, true},
		"CopyDone before a Query":   {append(wiretest.CopyDone(), wiretest.Query("rollback")...), true},
		"CopyFail before a Query":   {append(wiretest.Msg('f', []byte("no\x00")), wiretest.Query("rollback")...), true},
		"CopyData before a Query":   {append(wiretest.CopyData("x"), wiretest.Query("rollback")...), true},
		"CopyDone before a Sync":    {append(wiretest.CopyDone(), wiretest.Sync()...), true},
		"CopyDone before a Parse":   {append(wiretest.CopyDone(), wiretest.Parse("s", "select 1")...), true},
		"a Flush before a Rollback": {append(wiretest.Flush(), wiretest.Query("rollback")...), false},
	} {
		m := leading(15)
		pumpUp(t, m, wiretest.Query("begin"), 1<<20)
		pumpDown(t, m, append(wiretest.Msg('C', []byte("BEGIN\x00")), wiretest.Msg('Z', []byte{'T'})...), 1<<20)
		pumpUp(t, m, wiretest.Parse("s", "show work_mem"), 1<<20)
		pumpDown(t, m, wiretest.Msg('1'), 1<<20)
		pumpUp(t, m, c.sent, 1<<20)
		var p gate.Segments
		in := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to statement timeout\x00\x00"))
		p.Reset(in)
		_, _, err := m.FromServer(in, &p)
		if ends := errors.Is(err, ErrSurprise); ends != c.ends || !ends && err != nil {
			t.Errorf("%s: the session ends with %v; want that it ends: %v", name, err, c.ends)
		}
	}
}

// TestContextOfCopyData: the context of an error says in many languages that a COPY had
// read data.
func TestContextOfCopyData(t *testing.T) {
	t.Parallel()
	for where, want := range map[string]bool{
		"COPY t, line 1, column i: \"x\"":                                           true,
		"COPY t, line 12":                                                           true,
		"COPY t, line 1: \"a\nSQL\"":                                                true,
		"SQL statement \"insert into u values (1)\"\nCOPY t, line 3":                true,
		"COPY t, line 3\nSQL statement \"copy t from '/f'\"\nPL/pgSQL function f()": false,
		"COPY t":                             false,
		"COPY t, line 0":                     false,
		"COPY t, Zeile 1, Spalte i: »x«":     true,
		"COPY t, ligne 7 : « x »":            true,
		"COPY t, ligne 7, colonne i : « x »": true,
		"COPY t, línea 2":                    true,
		"COPY t, строка 2: \"x\"":            true,
		"COPY t, Zeile 3\nSQL-Anweisung »copy t from '/f'«\nPL/pgSQL-Funktion f()": false,
		"SQL-Anweisung »insert into u values (1)«\nCOPY t, Zeile 3, Spalte i: »x«": true,
	} {
		if got := ofCopyData(where); got != want {
			t.Errorf("%q: %t, want %t", where, got, want)
		}
	}
}

// TestACopyFailInAnotherLanguage: the error that answers a CopyFail is recognized
// whatever lc_messages says, and so are the Syncs that the server has read as COPY data.
func TestACopyFailInAnotherLanguage(t *testing.T) {
	t.Parallel()
	m := leading(15)
	pumpUp(t, m, wiretest.Query("copy t from stdin"), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('G', []byte{0, 0, 0})...), 1<<20)
	pumpUp(t, m, bytes.Join([][]byte{wiretest.Sync(), wiretest.Sync(), wiretest.CopyFail("nein"), wiretest.Sync()}, nil), 1<<20)
	out := bytes.Join([][]byte{
		wiretest.Msg('E', []byte("SFEHLER\x00VERROR\x00C57014\x00MCOPY FROM STDIN fehlgeschlagen: nein\x00WCOPY t, Zeile 1\x00RCopyGetData\x00\x00")),
		wiretest.Msg('Z', []byte("I")), wiretest.Msg('Z', []byte("I")),
	}, nil)
	if got, _ := pumpDown(t, m, out, 1<<20); !bytes.Equal(got, out) {
		t.Errorf("the client gets %q of %q", got, out)
	}
	if !m.pendingReplies.empty() || m.down.phase != (phase{}) {
		t.Errorf("%d replies are pending (%+v), want none", m.pendingReplies.len(), m.down.phase)
	}
}

// TestACopyThatEndsBeforeItsFirstLine: the server has not necessarily ignored the Syncs behind
// it, so an answer to each is relayed.
func TestACopyThatEndsBeforeItsFirstLine(t *testing.T) {
	t.Parallel()
	m := leading(15)
	pumpUp(t, m, bytes.Join([][]byte{wiretest.Query("copy t from stdin"), wiretest.Sync(), wiretest.CopyDone(), wiretest.Sync()}, nil), 1<<20)
	ready := wiretest.Msg('Z', []byte("I"))
	out := bytes.Join([][]byte{
		wiretest.Msg('G', []byte{0, 0, 0}),
		wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to user request\x00WCOPY t, line 0\x00RProcessInterrupts\x00\x00")),
		ready, ready, ready,
	}, nil)
	got, _ := pumpDown(t, m, append(wiretest.Msg('C', []byte("SELECT 1\x00")), out...), 1<<20)
	if !bytes.Equal(got, out) {
		t.Errorf("the client gets %q of %q", got, out)
	}
	if !m.pendingReplies.empty() || m.down.phase != (phase{}) {
		t.Errorf("%d replies are pending (%+v), want none", m.pendingReplies.len(), m.down.phase)
	}
}

// TestErrorAtASyncOfOurs: a timeout may come to the server between messages of
// ours, and is then raised at the Sync behind them. It is the answer to nothing
// of the client's.
func TestErrorAtASyncOfOurs(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	sent := pumpUp(t, m, wiretest.Query("insert into t values (1)"), 1<<20)
	timeout := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to statement timeout\x00\x00"))
	ready := wiretest.Msg('Z', []byte("I"))
	var server []byte
	syncs := 0
	for len(sent) > 0 {
		f, ok, err := wire.PeekClientFrame(sent)
		if err != nil || !ok {
			t.Fatalf("%q is no message: %v", sent, err)
		}
		switch f.Type {
		case 'P':
			server = append(server, wiretest.Msg('1', nil)...)
		case 'C':
			server = append(server, wiretest.Msg('3', nil)...)
		case 'S':
			syncs++
			server = append(append(server, timeout...), ready...)
		case 'Q':
			server = append(append(server, timeout...), ready...)
		default:
			t.Fatalf("a message %q is sent", f.Type)
		}
		sent = sent[f.Size:]
	}
	if syncs == 0 {
		t.Fatal("nothing is prepared in a batch of its own")
	}
	got, taken := pumpDown(t, m, server, 1<<20)
	if n := bytes.Count(got, []byte("57014")); n != 1 || taken != len(server) || bytes.Count(got, ready) != 1 {
		t.Errorf("the client gets %q of %q", got, server)
	}
}

// TestErrorAtACloseOfOurs: the same where checks that failed are replaced.
func TestErrorAtACloseOfOurs(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	timeout := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to statement timeout\x00\x00"))
	ready := wiretest.Msg('Z', []byte("I"))
	for _, first := range []byte{'P', 'C'} { // the second batch begins with a Close
		sent := pumpUp(t, m, wiretest.Query("insert into t values (1)"), 1<<20)
		if f, ok, err := wire.PeekClientFrame(sent); err != nil || !ok || f.Type != first {
			t.Fatalf("%q does not begin with %q (%v)", sent, first, err)
		}
		server := slices.Concat(timeout, ready, timeout, ready) // of the batch of Fencepost's, and of the Query
		got, taken := pumpDown(t, m, server, 1<<20)
		if n := bytes.Count(got, []byte("57014")); n != 1 || taken != len(server) || bytes.Count(got, ready) != 1 {
			t.Errorf("%q: the client gets %q of %q", first, got, server)
		}
	}
}

// TestNothingFollowsAnUnknownType: the server ends the connection over the type alone.
// Whatever followed it would be left unread there, and over TCP the end of the
// connection would then discard what the server has said and not yet delivered.
func TestNothingFollowsAnUnknownType(t *testing.T) {
	t.Parallel()
	for name, copying := range map[string]bool{"at rest": false, "in a COPY": true} {
		m := fuzzMachine(ModeFenced, standings[0])
		if copying {
			m.copy.begin(false)
		}
		in := append(wiretest.Msg('p', []byte("x\x00")), bytes.Repeat(wiretest.Query("select 2"), 100)...)
		if got := pumpUp(t, m, in, 1<<20); string(got) != "p" {
			t.Errorf("%s: %.200q goes to the server; want %q", name, got, "p")
		}
	}
}

// TestASyncBehindACopyThatReadNothing: a COPY has failed in a trigger before it read anything, so the server answers
// the Sync behind it. What the client sends before it has that answer is not taken for what the server skips.
func TestASyncBehindACopyThatReadNothing(t *testing.T) {
	t.Parallel()
	for context, runs := range map[string]bool{
		"PL/pgSQL function no() line 1 at RAISE":                      true,
		"PL/pgSQL function no() line 1 at RAISE\x00CP0001":            true,
		"PL/pgSQL function no() line 1 at RAISE\nCOPY t, line 0":      false, // it may have read the Sync
		"PL/pgSQL function no() line 1 at RAISE\x00C57014":            false, // so may this one, in the binary format
		"COPY t, line 1, column id: \"x\"\nSQL function \"f\" line 1": false,
	} {
		m := leading(15)
		pumpUp(t, m, join(wiretest.Parse("", "copy t from stdin"), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Sync()), 1<<20)
		pumpDown(t, m, join(
			wiretest.Msg('2'), wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('3'), wiretest.Msg('1'), wiretest.Msg('2'), wiretest.Msg('G', []byte{0, 0, 0}),
			wiretest.Msg('E', []byte("SERROR\x00VERROR\x00Mno\x00W"+context+"\x00\x00")),
		), 1<<20)
		if sent := pumpUp(t, m, wiretest.Query("select 1"), 1<<20); bytes.Contains(sent, []byte("select 1")) != runs {
			t.Errorf("after an error with the context %q, %q is sent; want the Query: %t", context, sent, runs)
		}
	}
}

// TestACopyThatLeavesInDoubtWhatWasSkipped: a COPY has failed at its end, or before its data. Whether the server goes
// on with the Sync in front of these, and so runs the Query behind them, nobody can tell: the session ends, after the
// COPY's own error, and nothing waits for a reply that may never come.
func TestACopyThatLeavesInDoubtWhatWasSkipped(t *testing.T) {
	t.Parallel()
	m := leading(15)
	pumpUp(t, m, join(wiretest.Parse("", "copy t from stdin"), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Sync()), 1<<20)
	pumpDown(t, m, join(wiretest.Msg('2'), wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('3'), wiretest.Msg('1'), wiretest.Msg('2'), wiretest.Msg('G', []byte{0, 0, 0})), 1<<20)
	pumpUp(t, m, join(wiretest.CopyData("1\n"), wiretest.CopyDone(), wiretest.Query("select 1")), 1<<20)
	failure := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00CP0001\x00Mno\x00\x00"))
	var p gate.Segments
	p.Reset(failure)
	_, _, err := m.FromServer(failure, &p)
	if said, _ := p.Bytes(nil); !errors.Is(err, ErrSurprise) || !bytes.Equal(said, failure) {
		t.Errorf("the client is told %q, and the session ends with %v; want the error of the COPY, and %v", said, err, ErrSurprise)
	}
}

// TestAnAnswerBehindTheQuestionWhichSyncsAreAnswered: a COPY has failed before it read anything, so the server answers both
// Syncs in front of its data. Fencepost asks after the first answer, and the second comes behind that.
func TestAnAnswerBehindTheQuestionWhichSyncsAreAnswered(t *testing.T) {
	t.Parallel()
	m := leading(15)
	pumpUp(t, m, bytes.Join([][]byte{wiretest.Parse("", "copy t from stdin"), wiretest.Bind("", ""), wiretest.Execute("", 0), wiretest.Sync(), wiretest.Sync()}, nil), 1<<20)
	check := append(wiretest.Msg('2'), append(wiretest.Msg('C', []byte("SELECT 0\x00")), wiretest.Msg('3')...)...)
	pumpDown(t, m, bytes.Join([][]byte{check, wiretest.Msg('1'), wiretest.Msg('2'), wiretest.Msg('G', []byte{0, 0, 0})}, nil), 1<<20)
	pumpUp(t, m, append(wiretest.CopyData("1\n"), wiretest.CopyDone()...), 1<<20)
	ready := wiretest.Msg('Z', []byte("I"))
	pumpDown(t, m, append(wiretest.Msg('E', []byte("SERROR\x00VERROR\x00CP0001\x00Mno\x00WPL/pgSQL function no() line 1 at RAISE\x00\x00")), ready...), 1<<20)
	if !m.Is(ReplayDue) {
		t.Fatal("nothing is to be asked")
	}
	var p gate.Plan
	p.Reset(nil)
	if _, _, err := m.FromClient(nil, &p); err != nil {
		t.Fatal(err)
	}
	if asked, _ := p.Bytes(nil); len(asked) == 0 || asked[0] != 'P' || m.Is(ReplayDue) {
		t.Fatalf("it asks by %q", asked)
	}
	if got, _ := pumpDown(t, m, ready, 1<<20); !bytes.Equal(got, ready) || m.down.phase != (phase{}) {
		t.Fatalf("the client gets %q, %+v; want ReadyForQuery", got, m.down.phase)
	}
	if got, _ := pumpDown(t, m, bytes.Join([][]byte{wiretest.Msg('1'), wiretest.Msg('3'), ready}, nil), 1<<20); len(got) > 0 || !m.Is(AtRest) {
		t.Errorf("the client gets %q, and the session is at rest: %t", got, m.Is(AtRest))
	}
}
