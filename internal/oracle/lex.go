package oracle

import "strings"

// reading is how the server reads the string constants of a text.
type reading uint8

const (
	unknown  reading = iota // it may be changing, or bytes of the encoding may hide quotes
	standard                // as the grammar reads them
	escapes                 // standard_conforming_strings is off
)

// lexer splits a text into statements.
type lexer struct {
	sql   string
	how   reading
	at    int
	begun int // start of the text that is not yet in now
	now   strings.Builder
	all   []string
}

// statements returns the statements of a text, with their constants rewritten as the
// grammar reads them. ok is false if the text cannot be split reliably.
func statements(sql string, how reading) (all []string, ok bool) {
	if strings.Contains(strings.ToLower(sql), "atomic") {
		return nil, false // a function body with semicolons may follow
	}
	l := &lexer{sql: sql, how: how}
	for depth := 0; l.at < len(sql); {
		switch c := sql[l.at]; {
		case l.has("--"):
			l.skip(strings.IndexAny(sql[l.at:], "\r\n"), 0)
		case l.has("/*"):
			l.comment()
		case c == '"':
			l.skipFrom(1, strings.IndexByte(sql[l.at+1:], '"'), 1)
		case c == '$' && l.dollar():
		case c == '\'':
			if !l.constant() {
				return nil, false
			}
		case c == ';' && depth == 0:
			l.end()
			l.at++
			l.begun = l.at
		default:
			if c == '(' {
				depth++
			} else if c == ')' {
				depth--
			}
			l.at++
		}
	}
	l.end()
	return l.all, true
}

func (l *lexer) has(s string) bool { return strings.HasPrefix(l.sql[l.at:], s) }

// skip advances by n and more bytes, or to the end of the text if n is negative.
func (l *lexer) skip(n, more int) {
	if n < 0 {
		l.at = len(l.sql)
		return
	}
	l.at += n + more
}

// skipFrom is skip for an n that is counted from another position.
func (l *lexer) skipFrom(from, n, more int) {
	if n >= 0 {
		n += from
	}
	l.skip(n, more)
}

func (l *lexer) comment() {
	for depth := 0; l.at < len(l.sql); {
		switch {
		case l.has("/*"):
			depth++
			l.at += 2
		case l.has("*/"):
			depth--
			l.at += 2
			if depth == 0 {
				return
			}
		default:
			l.at++
		}
	}
}

// letter reports whether a byte can be part of a name.
func letter(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// prefixed reports whether the constant here is preceded by one of these letters.
func (l *lexer) prefixed(letters string) bool {
	return l.at > 0 && strings.IndexByte(letters, l.sql[l.at-1]) >= 0 && (l.at == 1 || !letter(l.sql[l.at-2]))
}

// dollar skips a dollar-quoted constant, and reports whether there is one.
func (l *lexer) dollar() bool {
	if l.at > 0 && letter(l.sql[l.at-1]) {
		return false
	}
	end := strings.IndexByte(l.sql[l.at+1:], '$')
	if end < 0 {
		return false
	}
	tag := l.sql[l.at : l.at+end+2]
	for i := 1; i < len(tag)-1; i++ {
		if !letter(tag[i]) || i == 1 && tag[i] >= '0' && tag[i] <= '9' {
			return false
		}
	}
	l.skipFrom(len(tag), strings.Index(l.sql[l.at+len(tag):], tag), len(tag))
	return true
}

// constant skips a quoted constant.
func (l *lexer) constant() (ok bool) {
	escaped, by := l.prefixed("eE"), false
	if !escaped && l.how == escapes {
		if l.prefixed("nN") || l.at > 0 && l.sql[l.at-1] == '&' {
			return false
		}
		by = !l.prefixed("bBxX")
		if by && l.at > 0 && letter(l.sql[l.at-1]) {
			return false // a name directly before it
		}
	}
	begun := l.at
	l.quoted(escaped || by)
	if by && strings.Contains(l.sql[begun:l.at], `\`) {
		l.now.WriteString(l.sql[l.begun:begun])
		l.now.WriteByte('E')
		l.begun = begun
	}
	return true
}

// quoted advances past the end of a quoted constant.
func (l *lexer) quoted(escaped bool) {
	for l.at++; l.at < len(l.sql); l.at++ {
		switch c := l.sql[l.at]; {
		case c == '\\' && escaped:
			l.at++
		case c == '\'':
			l.at++
			if l.at == len(l.sql) || l.sql[l.at] != '\'' {
				return
			}
		}
	}
	l.at = len(l.sql)
}

// end ends a statement.
func (l *lexer) end() {
	l.now.WriteString(l.sql[l.begun:l.at])
	if s := strings.TrimSpace(l.now.String()); s != "" {
		l.all = append(l.all, s)
	}
	l.now.Reset()
}
