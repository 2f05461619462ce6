package sqltext

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	pgquery "github.com/pganalyze/pg_query_go/v6"
)

const (
	// parsedTextMax is the maximum length, in bytes, of a text that is given to the
	// grammar: the worst such text takes half a second and produces 70 MB of garbage.
	parsedTextMax = 256 << 10
	// stackPerLevel is more than what the C code that walks the tree of a text takes of its stack for each level: up to
	// 600 bytes.
	stackPerLevel = 1 << 10
	// largeText is the length, in bytes, from which texts queue for the parser, so that
	// many sessions cannot fill the memory with their trees at once.
	largeText = 16 << 10
)

// parsedDepthMax limits the depth of the tree of a text (see tooDeep).
var parsedDepthMax = min(threadStack()/stackPerLevel, 8000)

// threadStack returns the size of a thread's stack, in bytes. With glibc, it is the soft limit when the process starts,
// mostly 8 MiB, or 2 MiB if there is none.
func threadStack() int {
	const unlimited, others = 2 << 20, 512 << 10 // others: macOS
	var limit syscall.Rlimit
	switch {
	case runtime.GOOS != "linux", syscall.Getrlimit(syscall.RLIMIT_STACK, &limit) != nil:
		return others
	case limit.Cur > math.MaxInt32:
		return unlimited
	}
	return int(limit.Cur)
}

// largeParses limits how many large texts are parsed at once to half of the processors,
// so that the rest of the proxy can go on meanwhile.
var largeParses = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// Analyze classifies every statement of sql by the grammar of Postgres. It never fails:
// a text that cannot be parsed is not Known and has no Statements. Memory and time are
// bounded by the length of sql.
func Analyze(sql string, s Settings) *Text {
	if why := unreadable(sql, s); why != "" {
		return &Text{why: why}
	}
	tree, offsets, err := parse(sql)
	if err != nil {
		return &Text{why: err.Error()}
	}
	t := &Text{Known: true}
	if len(tree.Stmts) > 0 {
		t.Statements = make([]Statement, len(tree.Stmts))
	}
	for i, raw := range tree.Stmts {
		st := classify(raw.Stmt)
		st.Start = offsets.original(int(raw.StmtLocation))
		st.End = len(sql)
		if raw.StmtLen > 0 {
			st.End = offsets.original(int(raw.StmtLocation + raw.StmtLen))
		}
		st.Verb = verbOf(raw.Stmt, sql[st.Start:st.End])
		t.Statements[i] = st
	}
	return t
}

// unreadable returns why sql cannot be given to the grammar, "" if it can. The grammar
// assumes standard_conforming_strings = on, which matters only if there is a backslash,
// and a text in a superset of ASCII.
func unreadable(sql string, s Settings) string {
	switch {
	case len(sql) > parsedTextMax:
		return "text of more than 256 kB"
	case strings.IndexByte(sql, 0) >= 0:
		return "NUL byte"
	case !s.StandardConformingStrings && strings.IndexByte(sql, '\\') >= 0:
		return "backslash while standard_conforming_strings is off"
	case !s.SafeEncoding && !isASCII([]byte(sql)):
		return "client_encoding that hides ASCII bytes"
	case tooDeep(sql, parsedDepthMax):
		return "nested too deep"
	}
	return ""
}

// parse runs the grammar. It converts a panic of the grammar's Go side to an error.
func parse(sql string) (tree *pgquery.ParseResult, o offsets, err error) {
	defer func() {
		if r := recover(); r != nil {
			tree, err = nil, fmt.Errorf("parse: %v", r)
		}
	}()
	if len(sql) >= largeText {
		largeParses <- struct{}{}
		defer func() { <-largeParses }()
	}
	text := sql
	if !utf8.ValidString(sql) {
		text, o = widen(sql)
	}
	tree, err = pgquery.Parse(text)
	if err != nil {
		return nil, o, fmt.Errorf("parse: %w", err)
	}
	return tree, o, nil
}

// offsets maps offsets in a widened text to those in the original. It holds the
// offsets, in the widened text, of the bytes that were inserted. nil means that nothing
// was inserted.
type offsets []int

func (o offsets) original(at int) int {
	n, _ := slices.BinarySearch(o, at)
	return at - n
}

// widen converts a text in another encoding to UTF-8 by making each byte from 0x80 on a
// character of its own, because the parser's output must be UTF-8. To the lexer both
// are the same, because it treats any such byte as a letter.
func widen(sql string) (string, offsets) {
	var b strings.Builder
	b.Grow(len(sql) + len(sql)/4)
	var o offsets
	for i := 0; i < len(sql); i++ {
		if c := sql[i]; c < utf8.RuneSelf {
			b.WriteByte(c)
			continue
		}
		b.WriteRune(rune(sql[i]))
		o = append(o, b.Len()-1)
	}
	return b.String(), o
}

// isASCII looks at eight bytes at a time, since it is asked about each statement.
func isASCII(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.NativeEndian.Uint64(b)&0x8080_8080_8080_8080 != 0 {
			return false
		}
	}
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
