package gate

import (
	"testing"
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

// TestReasonsOfASettledSession: a text is unparsable only by a word that is a statement of its own, and the server
// has to have confirmed that it is read-only.
func TestReasonsOfASettledSession(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"refused": true, "select 1\n;refused": true, "select 'a\n;refused": true, "select 1 refused": false, "select 1 \nrefused": false, "select 1 -- ;refused": false, "refused ": false, "": false,
	} {
		if _, ok := Unparsable(text, "refused"); ok != want {
			t.Errorf("%q: %v, want %v", text, ok, want)
		}
	}
	if _, ok := ServerReadOnly(false); ok {
		t.Error("passes without a confirmation")
	}
}
