package sqltext

import "bytes"

// Quick classifies a text without the grammar if it is certainly one INSERT, UPDATE, DELETE or MERGE that begins with
// that word; ok is false for any other. It needs no Settings: without a semicolon there is no second statement, however
// strings are read.
func Quick(sql []byte) (s Statement, ok bool) {
	start, end := 0, len(sql)
	for start < end && isSpace(sql[start]) {
		start++
	}
	for end > start && (sql[end-1] == ';' || isSpace(sql[end-1])) {
		end--
	}
	word := start
	for word < end && isLetter(sql[word]) {
		word++
	}
	s.Command, s.End = quickCommand(sql[start:word]), end
	if s.Command == NoCommand || word < end && isIdentifier(sql[word]) || bytes.ContainsAny(sql[word:end], ";\x00") {
		return Statement{}, false
	}
	return s, true
}

// quickCommand is the command whose word is first.
func quickCommand(first []byte) Command {
	switch {
	case equalFold(first, "insert"):
		return Insert
	case equalFold(first, "update"):
		return Update
	case equalFold(first, "delete"):
		return Delete
	case equalFold(first, "merge"):
		return Merge
	default:
		return NoCommand
	}
}

// equalFold reports whether b is word, which is in lower case and has only letters, in letters of either case.
func equalFold(b []byte, word string) bool { return len(b) == len(word) && startsFold(b, word) }

// isSpace reports whether every version of Postgres treats c as space. (The vertical
// tab is space only from 16 on.)
func isSpace(c byte) bool {
	return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f'
}

func isLetter(c byte) bool { c |= 0x20; return c >= 'a' && c <= 'z' }

// isIdentifier reports whether c can continue an identifier.
func isIdentifier(c byte) bool {
	return isLetter(c) || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}
