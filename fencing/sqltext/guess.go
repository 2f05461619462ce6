package sqltext

import (
	"bytes"
	"strings"
)

// Guess is what the bytes of a text that was not parsed suggest about it. It is
// a type of its own because it can only forbid: nothing in a Guess says that a
// statement may go to the server uncovered, that it is a read, how many
// statements there are, or where one of them ends. Only a Statement, which the
// grammar or Quick has made, says such things.
type Guess struct {
	// PreparesTransaction: the text may hold PREPARE TRANSACTION, whose
	// transaction would outlive the note in the registry.
	PreparesTransaction bool
	// StartsWithPrepareTransaction: these are the words with which the text begins.
	StartsWithPrepareTransaction bool
	// Vacuums: the text may hold VACUUM, before which the note's commit has to
	// reach the disk.
	Vacuums bool
	// FreesNames: the text may hold what frees names of prepared statements, or
	// gives them another meaning.
	FreesNames bool
}

// GuessOf looks at the bytes of sql. It is quick, because it is given the
// longest texts. The words are keywords, which are ASCII in every encoding and
// cannot be written otherwise.
func GuessOf(sql []byte) Guess {
	g := Guess{StartsWithPrepareTransaction: startsWithPrepareTransaction(sql)}
	for i, c := range sql {
		switch c | 0x20 {
		case 'd':
			g.FreesNames = g.FreesNames || foldPrefix(sql[i:], "deallocate") || foldPrefix(sql[i:], "discard")
		case 'p':
			if foldPrefix(sql[i:], prepare) {
				g.FreesNames = true
				g.PreparesTransaction = g.PreparesTransaction || mayBeTransaction(sql[i+len(prepare):])
			}
		case 'v':
			g.Vacuums = g.Vacuums || foldPrefix(sql[i:], "vacuum")
		}
	}
	return g
}

const prepare, transaction = "prepare", "transaction"

// mayBeTransaction reports whether what stands after PREPARE may be TRANSACTION. The
// vertical tab is space to PostgreSQL from 16 on; a comment is taken for that word.
func mayBeTransaction(after []byte) bool {
	next := bytes.TrimLeft(after, " \t\n\v\f\r")
	return bytes.HasPrefix(next, []byte("/*")) || bytes.HasPrefix(next, []byte("--")) ||
		len(next) < len(after) && foldPrefix(next, transaction)
}

func startsWithPrepareTransaction(sql []byte) bool {
	sql = sql[skipSpace(sql, 0):]
	return foldPrefix(sql, prepare) && foldPrefix(sql[skipSpace(sql, len(prepare)):], transaction)
}

// unparsed describes a text that the grammar could not be given, or does not
// accept. Nothing is known of it, with one exception: a text of nothing but
// comments and space is empty in every encoding, since no byte that ends a
// comment can be part of a longer character.
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

// lower folds as Postgres folds keywords and names of parameters: ASCII only.
func lower(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}
