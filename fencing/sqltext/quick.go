package sqltext

import "bytes"

// Quick classifies the most common texts without the grammar and without allocating. It
// returns true if sql is certainly one statement that begins with SELECT, INSERT,
// UPDATE, DELETE, VALUES, WITH, TABLE or MERGE, or one of BEGIN, START TRANSACTION,
// COMMIT, END, ROLLBACK without options. It needs no Settings: without a semicolon
// there is no second statement, however strings are read. Only Analyze determines
// whether a query is a Read.
func Quick(sql []byte) (s Statement, ok bool) {
	ok = s.Quick(sql)
	return s, ok
}

// Quick is the function of that name for s, which must be empty and stays so if it returns false:
// for those who keep a Statement, so that none is copied.
func (s *Statement) Quick(sql []byte) bool {
	start := skipSpace(sql, 0)
	end := len(sql)
	for end > start && (sql[end-1] == ';' || isSpace(sql[end-1])) {
		end--
	}
	word := start
	for word < end && isLetter(sql[word]) {
		word++
	}
	if word < end && isIdentifier(sql[word]) {
		return false
	}
	first := sql[start:word]
	query := foldEqual(first, "select") || foldEqual(first, "with") || foldEqual(first, "values") || foldEqual(first, "table")
	command := quickCommand(first)
	if query || command != NoCommand {
		body := sql[word:end]
		if bytes.IndexByte(body, ';') >= 0 || bytes.IndexByte(body, 0) >= 0 {
			return false
		}
		s.Kind, s.Command, s.End = Ordinary, command, end
		return true
	}
	return s.quickTransaction(sql[:end], first, word)
}

// quickCommand is the command whose word is first.
func quickCommand(first []byte) Command {
	switch {
	case foldEqual(first, "insert"):
		return Insert
	case foldEqual(first, "update"):
		return Update
	case foldEqual(first, "delete"):
		return Delete
	case foldEqual(first, "merge"):
		return Merge
	default:
		return NoCommand
	}
}

// quickTransaction is Quick for the transaction commands without options.
func (s *Statement) quickTransaction(sql, first []byte, word int) bool {
	whole := word == len(sql)
	switch {
	case whole && foldEqual(first, "begin"):
		s.Kind = Begin
	case whole && (foldEqual(first, "commit") || foldEqual(first, "end")):
		s.Kind, s.EndsTransaction = Commit, true
	case whole && foldEqual(first, "rollback"):
		s.Kind, s.EndsTransaction = Rollback, true
	case foldEqual(first, "start") && foldEqual(sql[skipSpace(sql, word):], "transaction"):
		s.Kind = Begin
	default:
		return false
	}
	s.Read, s.End = true, len(sql)
	return true
}

// foldEqual compares case-insensitively by ASCII rules; lower must contain only
// lower-case letters and underscores.
func foldEqual(b []byte, lower string) bool {
	return len(b) == len(lower) && foldPrefix(b, lower)
}

func foldPrefix(b []byte, lower string) bool {
	if len(b) < len(lower) {
		return false
	}
	for i := 0; i < len(lower); i++ {
		c := b[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

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
