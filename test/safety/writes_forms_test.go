package safety

import (
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// form is a way to send a path's statements.
type form struct {
	name string
	// pieces are what is sent, each when the one before was answered. Nothing of
	// them changes anything in front of the path but BEGIN, which is in first.
	first, pieces [][]byte
	inBlock       bool
	readOnly      bool
}

// executed is a form in which Postgres executes the path if it is asked by one who
// may. Each path in turn has another.
func (h *writesCluster) executed(p writePath, turn int) form {
	all := p.forms(h.fill)
	for {
		if f := all[turn%len(all)]; !f.readOnly && !(p.alone && f.inBlock) {
			return f
		}
		turn++
	}
}

// refused are forms in which one who does not lead sends the path: the first,
// another one in turn, and a text of another kind, if wanted.
func (h *writesCluster) refused(p writePath, turn int, text bool) []form {
	all := p.forms(h.fill)
	some := []form{all[0], all[1+turn%(len(all)-1)]}
	if text && p.call == nil && !p.block {
		some = append(some, p.asText(textKinds[turn%len(textKinds)], h.fill))
	}
	return some
}

// The kinds of texts: longer than what the grammar is given, and than what the
// proxy looks at; nested deeper than the grammar is given; with a backslash while
// standard_conforming_strings is off; with a byte outside ASCII in SJIS.
var textKinds = []textKind{
	{name: "padded", with: " /* " + strings.Repeat("x", 256<<10) + " */"},
	{name: "huge", with: " /* " + strings.Repeat("x", 1<<20) + " */"},
	{name: "deep", with: " " + strings.Repeat("/*", 2100) + strings.Repeat("*/", 2100)},
	{name: "old strings", set: "set standard_conforming_strings = off; set escape_string_warning = off", with: ` /* \ */`},
	{name: "SJIS", set: "set client_encoding = 'SJIS'", with: " /* \x83\x5c */"},
}

// textKind is a kind of texts that mean the same as they do without it.
type textKind struct{ name, set, with string }

// asText is the path in texts of a kind.
func (p writePath) asText(k textKind, fill func(string) string) form {
	f := form{name: k.name}
	if k.set != "" {
		f.first = [][]byte{Q(k.set)}
	}
	for i, sql := range p.sql {
		f.pieces = append(f.pieces, Cat(Q(fill(sql)+k.with), p.dataOf(i)))
	}
	return f
}

// dataOf is what follows the i-th statement: the data of a COPY, which is the last.
func (p writePath) dataOf(i int) []byte {
	if i < len(p.sql)-1 || p.data == "" {
		return nil
	}
	return Cat(wiretest.CopyData(p.data), wiretest.CopyDone())
}

// forms are the ways in which the path can be sent.
func (p writePath) forms(fill func(string) string) []form {
	if p.call != nil {
		return []form{{name: "call", pieces: [][]byte{p.call}}, {name: "call in a block", first: [][]byte{Q("begin")}, pieces: [][]byte{p.call, Q("commit")}, inBlock: true}}
	}
	var simple, extended, batch [][]byte
	for i, sql := range p.sql {
		sql, data := fill(sql), p.dataOf(i)
		simple = append(simple, Cat(Q(sql), data))
		extended = append(extended, Batch(Run(sql), data))
		batch = append(batch, Cat(Run(sql), data))
	}
	text := Cat(Q("begin; "+fill(strings.Join(p.sql, "; "))+"; commit"), p.dataOf(len(p.sql)-1))
	all := []form{
		{name: "simple", pieces: simple},
		{name: "extended", pieces: extended},
		{name: "simple in a block", first: [][]byte{Q("begin")}, pieces: append(simple[:len(simple):len(simple)], Q("commit")), inBlock: true},
		{name: "extended in a block", first: [][]byte{Batch(Run("begin"))}, pieces: append(extended[:len(extended):len(extended)], Batch(Run("commit"))), inBlock: true},
		{name: "a batch with begin and commit", pieces: [][]byte{Batch(Run("begin"), Cat(batch...), Run("commit"))}, inBlock: true},
		{name: "one text with begin and commit", pieces: [][]byte{text}, inBlock: true},
		{name: "simple in a read only block", first: [][]byte{Q("begin read only")}, pieces: append(simple[:len(simple):len(simple)], Q("commit")), inBlock: true, readOnly: true},
	}
	if p.block {
		return all[2:]
	}
	return all
}

// answers counts the ReadyForQuery that a piece is answered by.
func answers(piece []byte) (n int) {
	for len(piece) >= 5 {
		if strings.IndexByte("QSF", piece[0]) >= 0 {
			n++
		}
		size := 1 + int(piece[1])<<24 + int(piece[2])<<16 + int(piece[3])<<8 + int(piece[4])
		piece = piece[min(size, len(piece)):]
	}
	return n
}

// sendPiece sends a piece and reads what answers it. ended says that the
// connection did.
func sendPiece(t *testing.T, c *wiretest.Conn, piece []byte) (all []wiretest.Message, ended bool) {
	t.Helper()
	if _, err := c.Write(piece); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("send: %v", err)
	}
	for n := answers(piece); n > 0; {
		m, err := c.Next()
		if errors.Is(err, io.EOF) {
			return all, true
		}
		if err != nil {
			t.Fatalf("%.300q: %v; before it: %v", piece, err, all)
		}
		all = append(all, m)
		if m.Type == 'Z' {
			n--
		}
	}
	return all, false
}

// sendPieces runs pieces until the connection ends, and returns all that came.
func sendPieces(t *testing.T, c *wiretest.Conn, pieces ...[]byte) (all []wiretest.Message, ended bool) {
	t.Helper()
	for _, piece := range pieces {
		more, ended := sendPiece(t, c, piece)
		all = append(all, more...)
		if ended {
			return all, true
		}
	}
	return all, false
}

// transcriptOf shows messages, one per line.
func transcriptOf(all []wiretest.Message, ended bool) []string {
	var lines []string
	for _, m := range all {
		if line := m.String(); !strings.HasPrefix(line, `S "fencepost.`) {
			lines = append(lines, line)
		}
	}
	if ended {
		lines = append(lines, "the end")
	}
	return lines
}

// leaveNow ends a connection and waits until the server has said its last.
func leaveNow(c *wiretest.Conn) {
	_, _ = c.Write(wiretest.Terminate())
	c.Rest()
	_ = c.Close()
}

func queries(sqls []string, fill func(string) string) [][]byte {
	var all [][]byte
	for _, sql := range sqls {
		all = append(all, Q(fill(sql)))
	}
	return all
}
