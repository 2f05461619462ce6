package sqltext

import (
	"bytes"
	"strings"
)

// Guess is what the bytes of an unparsed text suggest. It is a separate type because it
// can only forbid: nothing in a Guess says that a statement may go to the server
// without coverage, that it is a read, how many statements there are, or where one of
// them ends. Only a Statement, which is made by the grammar or by Quick, says such
// things.
type Guess struct {
	// PreparesTransaction means that the text may contain PREPARE TRANSACTION, whose
	// transaction would outlive its registration.
	PreparesTransaction bool
	// StartsWithPrepareTransaction means that the text begins with these words.
	StartsWithPrepareTransaction bool
	// Vacuums means that the text may contain VACUUM, before which the commit of the
	// registration must be flushed to disk.
	Vacuums bool
	// FreesNames means that the text may contain something that frees or redefines
	// names of prepared statements.
	FreesNames bool
	// ImportsSnapshot means that the text may contain SET TRANSACTION SNAPSHOT.
	ImportsSnapshot bool
	// Chooses means that the text may contain the parameter fencepost.resource or
	// fencepost.token, which decide what is checked.
	Chooses bool
	// Executes means that the text may contain EXECUTE.
	Executes bool
}

// GuessOf scans the bytes of sql. It is fast, because it is used for the longest texts.
// The words that it searches for are keywords, which are ASCII in every encoding and
// cannot be written in another way.
func GuessOf(sql []byte) Guess {
	g := Guess{StartsWithPrepareTransaction: startsWithPrepareTransaction(sql)}
	var snapshots bool
	for i, c := range sql {
		switch c | 0x20 {
		case 'd':
			g.FreesNames = g.FreesNames || foldPrefix(sql[i:], "deallocate") || foldPrefix(sql[i:], "discard")
		case 'f':
			g.Chooses = g.Chooses || foldPrefix(sql[i:], fence) && mayChoose(sql[i+len(fence):])
		case 'p':
			if foldPrefix(sql[i:], prepare) {
				g.FreesNames = true
				g.PreparesTransaction = g.PreparesTransaction || mayBeFollowed(sql[i+len(prepare):], transaction)
			}
		case 's':
			snapshots = snapshots || foldPrefix(sql[i:], snapshot)
		case 't':
			g.ImportsSnapshot = g.ImportsSnapshot || foldPrefix(sql[i:], transaction) && mayBeFollowed(sql[i+len(transaction):], snapshot)
		case 'v':
			g.Vacuums = g.Vacuums || foldPrefix(sql[i:], "vacuum")
		case 'x': // the second letter, because the first is the most frequent one
			g.Executes = g.Executes || i > 0 && foldPrefix(sql[i-1:], "execute")
		}
	}
	g.ImportsSnapshot = g.ImportsSnapshot && snapshots
	return g
}

const prepare, transaction, snapshot, fence, resource = "prepare", "transaction", "snapshot", "fencepost", "resource"

// mayChoose reports whether the text after the first part of a parameter's name may go on to
// fencepost.resource or fencepost.token. A comment is treated as that.
func mayChoose(after []byte) bool {
	const space = " \t\n\v\f\r\""
	next := bytes.TrimLeft(after, space)
	name, found := bytes.CutPrefix(next, []byte("."))
	if name = bytes.TrimLeft(name, space); found && (foldPrefix(name, resource) || foldPrefix(name, "token")) {
		return true
	}
	comment := func(b []byte) bool { return bytes.HasPrefix(b, []byte("/*")) || bytes.HasPrefix(b, []byte("--")) }
	return comment(next) || found && comment(name)
}

// mayBeFollowed reports whether the text after a word may begin with another word. The
// vertical tab is space to PostgreSQL from 16 on; a comment is treated as that word.
func mayBeFollowed(after []byte, word string) bool {
	next := bytes.TrimLeft(after, " \t\n\v\f\r")
	return bytes.HasPrefix(next, []byte("/*")) || bytes.HasPrefix(next, []byte("--")) ||
		len(next) < len(after) && foldPrefix(next, word)
}

func startsWithPrepareTransaction(sql []byte) bool {
	sql = sql[skipSpace(sql, 0):]
	return foldPrefix(sql, prepare) && foldPrefix(sql[skipSpace(sql, len(prepare)):], transaction)
}

// unparsed describes a text that the grammar cannot be given or does not accept.
// Nothing is known about it, with one exception: a text of only comments and space is
// empty in every encoding, because no byte that ends a comment can be part of a longer
// character.
func unparsed(sql, why string) *Text {
	t := &Text{why: why}
	if !AtMostOne([]byte(sql)) {
		return t
	}
	s := scanner{sql: sql}
	token := s.next()
	for token.kind == tokenSemicolon {
		token = s.next()
	}
	t.Known = token.kind == tokenEnd
	return t
}

// lower converts to lower case as Postgres does for keywords and parameter names: ASCII
// only.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
