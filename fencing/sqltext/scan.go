package sqltext

import "strings"

// tokenKind classifies tokens as far as nesting and statement boundaries require.
type tokenKind uint8

const (
	tokenEnd    tokenKind = iota // the end of the text
	tokenBad                     // unterminated, or a byte that is space in some versions only
	tokenJunk                    // a number followed by letters: an error or not, depending on the version
	tokenWord                    // a keyword or an unquoted identifier
	tokenQuoted                  // a string of any kind, or a quoted identifier
	tokenOpen                    // ( or [
	tokenClose                   // ) or ]
	tokenComma
	tokenSemicolon
	tokenOther // a number, a parameter, one character of an operator
)

type token struct {
	kind       tokenKind
	start, end int
}

// scanner splits SQL text into tokens by the lexical rules of Postgres. It exists in
// addition to the grammar for texts that the grammar cannot be given because they are
// too deep, and for those that it does not accept. It never fails; it returns tokenBad.
// Bytes from 0x80 on continue an identifier, as in Postgres.
type scanner struct {
	sql string
	pos int
	// escapes means that a backslash in '...' escapes (standard_conforming_strings
	// off).
	escapes bool
	// comments is the maximum nesting depth of comments so far.
	comments int
}

// next returns the next token that is neither space nor comment.
func (s *scanner) next() token {
	if !s.skip() {
		return token{tokenBad, s.pos, len(s.sql)}
	}
	if s.pos >= len(s.sql) {
		return token{tokenEnd, s.pos, s.pos}
	}
	start := s.pos
	kind := s.advance(s.sql[s.pos])
	return token{kind, start, s.pos}
}

// advance reads the token that begins with c at s.pos.
func (s *scanner) advance(c byte) tokenKind {
	switch {
	case c == '\'':
		return s.quotedString(s.pos, s.escapes, true)
	case c == '"':
		return s.quotedName(s.pos)
	case c == '$':
		return s.dollar()
	case isLetter(c) || c == '_' || c >= 0x80:
		return s.word()
	case c >= '0' && c <= '9' || c == '.' && isDigit(s.at(s.pos+1)):
		return s.number()
	}
	s.pos++
	switch c {
	case '(', '[':
		return tokenOpen
	case ')', ']':
		return tokenClose
	case ',':
		return tokenComma
	case ';':
		return tokenSemicolon
	case 0, '\v':
		return tokenBad // space only from 16 on
	}
	return tokenOther
}

// at returns the byte at i, 0 after the end.
func (s *scanner) at(i int) byte {
	if i < len(s.sql) {
		return s.sql[i]
	}
	return 0
}

// skip moves over space and comments. It returns false if a comment is unterminated.
func (s *scanner) skip() bool {
	for s.pos < len(s.sql) {
		switch c := s.sql[s.pos]; {
		case isSpace(c):
			s.pos++
		case c == '-' && s.at(s.pos+1) == '-':
			s.pos = lineEnd(s.sql, s.pos)
		case c == '/' && s.at(s.pos+1) == '*':
			if !s.blockComment() {
				return false
			}
		default:
			return true
		}
	}
	return true
}

// lineEnd returns the end of the line that contains i, at its newline.
func lineEnd(sql string, i int) int {
	if n := strings.IndexAny(sql[i:], "\n\r"); n >= 0 {
		return i + n
	}
	return len(sql)
}

// blockComment moves over a comment, including nested ones.
func (s *scanner) blockComment() bool {
	depth := 0
	for i := s.pos; i+1 < len(s.sql); {
		switch {
		case s.sql[i] == '/' && s.sql[i+1] == '*':
			depth++
			s.comments = max(s.comments, depth)
			i += 2
		case s.sql[i] == '*' && s.sql[i+1] == '/':
			depth--
			i += 2
			if depth == 0 {
				s.pos = i
				return true
			}
		default:
			i++
		}
	}
	s.pos = len(s.sql)
	return false
}

// quotedString reads a string whose opening quote is at quote, and its continuations
// after a newline, which are read in the same way. doubled means that two quotes stand
// for one.
func (s *scanner) quotedString(quote int, escapes, doubled bool) tokenKind {
	for i := quote + 1; i < len(s.sql); {
		switch c := s.sql[i]; {
		case c == '\\' && escapes:
			i += 2
		case c != '\'':
			i++
		case doubled && s.at(i+1) == '\'':
			i += 2
		default:
			next, ok := s.continued(i + 1)
			if !ok {
				s.pos = i + 1
				return tokenQuoted
			}
			i = next
		}
	}
	s.pos = len(s.sql)
	return tokenBad
}

// continued reports whether a string that closed just before i continues after space
// that contains a newline, and returns the position after the next opening quote.
func (s *scanner) continued(i int) (int, bool) {
	for newline := false; i < len(s.sql); {
		switch c := s.sql[i]; {
		case c == '\n' || c == '\r':
			newline = true
			i++
		case isSpace(c) || c == '\v':
			i++
		case c == '-' && s.at(i+1) == '-':
			i = lineEnd(s.sql, i)
		default:
			return i + 1, newline && c == '\''
		}
	}
	return 0, false
}

// quotedName reads "...", whose opening quote is at quote.
func (s *scanner) quotedName(quote int) tokenKind {
	for i := quote + 1; i < len(s.sql); i++ {
		if s.sql[i] != '"' {
			continue
		}
		if s.at(i+1) != '"' {
			s.pos = i + 1
			return tokenQuoted
		}
		i++
	}
	s.pos = len(s.sql)
	return tokenBad
}

// dollar reads $tag$...$tag$, a parameter, or a single dollar sign.
func (s *scanner) dollar() tokenKind {
	i := s.pos + 1
	if isDigit(s.at(i)) {
		s.pos = i
		return s.number()
	}
	for i < len(s.sql) && isIdentifier(s.sql[i]) && s.sql[i] != '$' {
		i++
	}
	if s.at(i) != '$' {
		s.pos++
		return tokenOther
	}
	tag := s.sql[s.pos : i+1]
	n := strings.Index(s.sql[i+1:], tag)
	if n < 0 {
		s.pos = len(s.sql)
		return tokenBad
	}
	s.pos = i + 1 + n + len(tag)
	return tokenQuoted
}

// word reads an identifier, or the string that its first letter introduces.
func (s *scanner) word() tokenKind {
	start := s.pos
	if s.at(start+1) == '\'' {
		switch s.sql[start] | 0x20 {
		case 'e':
			return s.quotedString(start+1, true, true)
		case 'b', 'x':
			return s.quotedString(start+1, false, false)
		case 'n':
			return s.quotedString(start+1, s.escapes, true)
		}
	}
	if s.sql[start]|0x20 == 'u' && s.at(start+1) == '&' {
		switch s.at(start + 2) {
		case '\'':
			return s.quotedString(start+2, false, true)
		case '"':
			return s.quotedName(start + 2)
		}
	}
	s.letters()
	return tokenWord
}

// letters reads what can be in an identifier.
func (s *scanner) letters() {
	for s.pos < len(s.sql) && isIdentifier(s.sql[s.pos]) {
		s.pos++
	}
}

// number reads the digits of a number or a parameter. Letters directly after it make it
// tokenJunk: they are an error, or part of the number.
func (s *scanner) number() tokenKind {
	for s.pos < len(s.sql) && (isDigit(s.sql[s.pos]) || s.sql[s.pos] == '.') {
		s.pos++
	}
	if s.at(s.pos)|0x20 == 'e' {
		i := s.pos + 1
		if c := s.at(i); c == '+' || c == '-' {
			i++
		}
		if isDigit(s.at(i)) {
			for s.pos = i; isDigit(s.at(s.pos)); {
				s.pos++
			}
		}
	}
	if s.pos < len(s.sql) && isIdentifier(s.sql[s.pos]) {
		s.letters()
		return tokenJunk
	}
	return tokenOther
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

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
