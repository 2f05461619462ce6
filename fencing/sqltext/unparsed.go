package sqltext

import "strings"

const prepare, transaction, fence = "prepare", "transaction", "fencepost"

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
