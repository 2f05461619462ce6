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
