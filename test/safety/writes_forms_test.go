package safety

import (
	"errors"
	"io"
	"os"
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

// allForms, if set, has each path run in each form: that takes minutes.
var allForms = os.Getenv("FENCEPOST_TEST_ALL_FORMS") != ""

// leaderForms and refusedForms are the n of some.
const (
	leaderForms  = 12
	refusedForms = 5
)

// some are one in n of the forms in which a path is run, and one at least in
// which Postgres executes it; of those that define objects, which are many, one in
// 3n. Each path and version has others.
func (h *writesCluster) some(p writePath, x *side, n int) []form {
	if p.define {
		n *= 3
	}
	all := p.forms(func(sql string) string { return h.fill(sql, x) })
	if p.call != nil || allForms {
		return all
	}
	shift := len(p.name) + h.major/3
	works := func(i int) bool { return !all[i].readOnly && !(p.alone && all[i].inBlock) }
	one := shift % len(all)
	for !works(one) {
		one = (one + 1) % len(all)
	}
	var some []form
	for i, f := range all {
		if (i+shift)%n == 0 || i == one {
			some = append(some, f)
		}
	}
	return some
}

// forms are the ways in which the path can be sent.
func (p writePath) forms(fill func(string) string) []form {
	if p.call != nil {
		return []form{{name: "call", pieces: [][]byte{p.call}}, {name: "call in a block", first: [][]byte{Q("begin")}, pieces: [][]byte{p.call, Q("commit")}, inBlock: true}}
	}
	var simple, extended, batch [][]byte
	for i, sql := range p.sql {
		sql = fill(sql)
		var data []byte
		if i == len(p.sql)-1 && p.data != "" {
			data = Cat(wiretest.CopyData(p.data), wiretest.CopyDone())
		}
		simple = append(simple, Cat(Q(sql), data))
		extended = append(extended, Batch(Run(sql), data))
		batch = append(batch, Cat(Run(sql), data))
	}
	text := Q("begin; " + fill(strings.Join(p.sql, "; ")) + "; commit")
	if p.data != "" {
		text = Cat(text, wiretest.CopyData(p.data), wiretest.CopyDone())
	}
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

// transcriptOf is what a client is to find the same, line by line.
func transcriptOf(all []wiretest.Message, ended bool, db string) []string {
	var lines []string
	for _, m := range all {
		if line := m.String(); !strings.HasPrefix(line, `S "fencepost.`) {
			lines = append(lines, strings.ReplaceAll(line, db, "{db}"))
		}
	}
	if ended {
		lines = append(lines, "the end")
	}
	return lines
}

// leave ends a connection and waits until the server has said its last.
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

// chownLike gives a file to the owner of another, if this user may.
func chownLike(path string, like os.FileInfo) error {
	st, ok := like.Sys().(*syscall.Stat_t)
	if !ok || os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}

// name makes a name of a subtest.
func name(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == '/' {
			return '_'
		}
		return r
	}, s[:min(len(s), 60)])
}
