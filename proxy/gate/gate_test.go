package gate

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// panics reports whether f panics.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func message(typ byte, body string) []byte {
	n := len(body) + 4
	return append([]byte{typ, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// TestNothingPassesWithoutAReason: the zero Reason lets nothing through, and the
// way for messages without one takes only those that can do nothing.
func TestNothingPassesWithoutAReason(t *testing.T) {
	t.Parallel()
	for _, typ := range "QPBDEFdSHCXcfz" {
		in := message(byte(typ), "x\x00")
		var g Gate
		var p Plan
		p.Reset(in)
		if !panics(func() { g.Pass(&p, 0, len(in), 0, Reason{}) }) {
			t.Errorf("a message %q passed without a reason", typ)
		}
		if !panics(func() { g.PassText(&p, in, Reason{}) }) {
			t.Errorf("a text passed in %q without a reason", typ)
		}
		if out, _ := p.Bytes(nil); len(out) != 0 {
			t.Errorf("%q was sent all the same", out)
		}
		runs := typ == 'Q' || typ == 'P' || typ == 'B' || typ == 'D' || typ == 'E' || typ == 'F' || typ == 'd'
		if panics(func() { p.Relay(0, len(in)) }) != runs {
			t.Errorf("a message %q that can run something (%v) is relayed otherwise", typ, runs)
		}
	}
}

// TestRestIsBounded: no more bytes follow a message than it announced.
func TestRestIsBounded(t *testing.T) {
	t.Parallel()
	in := message('B', "p\x00s\x00")
	r, _ := Unfenced(true)
	var g Gate
	var p Plan
	p.Reset(in)
	g.Pass(&p, 0, len(in)-2, 2, r)
	if panics(func() { g.Rest(&p, len(in)-2, len(in)) }) {
		t.Error("the rest of a message does not pass")
	}
	if !panics(func() { g.Rest(&p, len(in)-1, len(in)) }) {
		t.Error("a byte more than the message has passed")
	}
}

func statement(t *testing.T, sql string) *sqltext.Statement {
	t.Helper()
	text := sqltext.Analyze(sql, sqltext.DefaultSettings)
	if len(text.Statements) != 1 {
		t.Fatalf("%s: %d statements", sql, len(text.Statements))
	}
	return &text.Statements[0]
}

// TestWhatIsHarmless: which statements pass without a check by their tree alone,
// in a block, and at rest.
func TestWhatIsHarmless(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sql              string
		block, rest, v15 bool
	}{
		{"begin", true, true, true},
		{"start transaction isolation level serializable", true, true, true},
		{"commit and chain", true, true, true},
		{"rollback to s", true, true, true},
		{"release s", true, true, true},
		{"set work_mem = '1MB'", true, true, true},
		{"reset transaction_read_only", true, true, false},
		{"show work_mem", true, true, true},
		{"listen x", true, true, true},
		{"discard all", true, true, true},
		{"deallocate x", true, true, true},
		{"savepoint s", false, true, true},
		{"lock table t", false, true, true},
		{"set constraints all immediate", false, true, true},
		{"declare c cursor for select '{1}'::dom[]", false, false, false},
		{"declare c cursor with hold for select f()", false, false, false},
		{"notify x", false, false, false},
		{"select 1", false, false, false},
		{"fetch c", false, false, false},
		{"execute p", false, false, false},
		{"prepare p as select 1", false, false, false},
		{"prepare transaction 'x'", false, false, false},
		{"vacuum", false, false, false},
		{"call p()", false, false, false},
	} {
		s := statement(t, c.sql)
		passes := func(txn Txn, version Version) bool {
			_, harmless := txn.Harmless(s, version)
			_, nothing := txn.NothingOutside(s)
			return harmless || nothing
		}
		var rest, block Txn
		block.Answer(Block, false)
		if got := passes(block, 18); got != c.block {
			t.Errorf("%s passes in a block: %v, want %v", c.sql, got, c.block)
		}
		if got := passes(rest, 18); got != c.rest {
			t.Errorf("%s passes at rest: %v, want %v", c.sql, got, c.rest)
		}
		if got := passes(rest, 15); got != c.v15 {
			t.Errorf("%s passes at rest on 15: %v, want %v", c.sql, got, c.v15)
		}
	}
}

// TestInertMessages: only what the server rejects before it runs anything, or
// what only looks, is inert.
func TestInertMessages(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		typ  byte
		body string
		want bool
	}{
		{'Q', "select 1\x00", false}, {'Q', "\x00", false}, {'Q', "select 1", true}, {'Q', "", true}, {'Q', "select 1\x00x", true},
		{'P', "s\x00select 1\x00\x00\x00", false}, {'P', "s\x00select 1", true}, {'P', "s", true}, {'P', "", true},
		{'B', "p\x00s\x00", false}, {'B', "p\x00s", true}, {'B', "", true},
		{'E', "p\x00\x00\x00\x00\x00", false}, {'E', "p", true},
		{'D', "Ss\x00", false}, {'D', "S\x00", false}, {'D', "Pp\x00", true}, {'D', "", true}, {'D', "Xs\x00", true},
		{'F', "", false}, {'F', "x", false}, {'d', "", false},
	} {
		if _, got := Inert(c.typ, []byte(c.body)); got != c.want {
			t.Errorf("%c %q is inert: %v, want %v", c.typ, c.body, got, c.want)
		}
	}
}

func TestNotesEnd(t *testing.T) {
	t.Parallel()
	if _, ok := (Registration{}).Reason(); ok {
		t.Error("there is a reason without a note")
	}
	if _, ok := Registered(&fencing.Refusal{}).Reason(); ok {
		t.Error("there is a reason though no note could be made")
	}
	if _, ok := Registered(nil).Reason(); !ok {
		t.Error("a note is no reason")
	}
}

// TestReasonOfAText: a text has a reason if each of its parts has one.
func TestReasonOfAText(t *testing.T) {
	t.Parallel()
	r, _ := Unfenced(true)
	for _, c := range []struct {
		first, next Reason
		want        bool
	}{{r, r, true}, {Reason{}, r, false}, {r, Reason{}, false}} {
		if got := c.first.And(c.next); (got != Reason{}) != c.want {
			t.Errorf("%q and %q are %q", c.first, c.next, got)
		}
	}
}

// TestProvenByTheCatalogAlone: that a statement only reads is no reason.
func TestProvenByTheCatalogAlone(t *testing.T) {
	t.Parallel()
	s := statement(t, "select f()")
	if !s.Read {
		t.Fatal("the statement is no read")
	}
	for _, c := range []*fencing.Catalog{nil, fencing.NewCatalog(fencing.Facts{})} {
		if _, ok := Proven(c, s); ok {
			t.Errorf("it is proven by %v", c)
		}
	}
}
