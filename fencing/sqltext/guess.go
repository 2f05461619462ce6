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
	// Vacuums: the text may hold VACUUM, before which the note's commit has to
	// reach the disk.
	Vacuums bool
}

// GuessOf looks at the bytes of sql. It is quick, because it is given the
// longest texts.
func GuessOf(sql []byte) Guess {
	return Guess{PreparesTransaction: mayPrepareTransaction(sql), Vacuums: mayVacuum(sql)}
}

func mayVacuum(sql []byte) bool {
	for i, c := range sql {
		if c|0x20 == 'v' && foldPrefix(sql[i:], "vacuum") {
			return true
		}
	}
	return false
}

// mayPrepareTransaction: the vertical tab is space to PostgreSQL from 16 on; a
// comment after PREPARE is taken for TRANSACTION.
func mayPrepareTransaction(sql []byte) bool {
	const word = "prepare"
	for i, c := range sql {
		if c|0x20 != 'p' || !foldPrefix(sql[i:], word) {
			continue
		}
		after := sql[i+len(word):]
		next := bytes.TrimLeft(after, " \t\n\v\f\r")
		switch {
		case bytes.HasPrefix(next, []byte("/*")), bytes.HasPrefix(next, []byte("--")):
			return true
		case len(next) < len(after) && foldPrefix(next, "transaction"):
			return true
		}
	}
	return false
}

// unparsed describes a text that the grammar could not be given, or does not
// accept. Nothing is known of it, with one exception: a text of nothing but
// comments and space is empty in every encoding, since no byte that ends a
// comment can be part of a longer character.
func unparsed(sql, why string) *Text {
	t := &Text{why: why}
	if !singleByBytes(sql) {
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
