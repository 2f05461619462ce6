package oracle

import (
	"bytes"
	"fmt"
	"strings"
)

// transcript keeps the last messages of both directions.
type transcript struct {
	lines [60]line
	n     int
}

// line is one kept message. It is formatted on demand.
type line struct {
	direction byte
	typ       byte
	size      int
	body      []byte // or the start of a long one
	end       []byte // of a long one
}

const longestLine = 300

// next returns the line to write to, which replaces the oldest.
func (t *transcript) next() *line {
	t.n++
	l := &t.lines[(t.n-1)%len(t.lines)]
	*l = line{body: l.body[:0], end: l.end[:0]}
	return l
}

// add adds a remark.
func (t *transcript) add(format string, args ...any) {
	l := t.next()
	l.direction, l.body = '=', fmt.Appendf(l.body, format, args...)
}

func (t *transcript) sent(f frame) { t.message('>', f) }

func (t *transcript) received(f frame) { t.message('<', f) }

func (t *transcript) message(direction byte, f frame) {
	l := t.next()
	l.direction, l.typ, l.size = direction, f.typ, f.size
	switch n := len(f.body); {
	case direction == '<' && (f.typ == 'E' || f.typ == 'N'): // these are short
		l.body = append(l.body, f.body...)
	case n > longestLine:
		l.body = append(l.body, f.body[:longestLine]...)
		l.end = append(l.end, f.body[max(longestLine, n-longestLine):]...)
	default:
		l.body = append(l.body, f.body...)
	}
}

func (l *line) String() string {
	switch {
	case l.direction == '=':
		return "= " + string(l.body)
	case l.direction == '<' && (l.typ == 'E' || l.typ == 'N'):
		fields := []string{}
		for _, field := range bytes.Split(l.body, []byte{0}) {
			if len(field) > 1 && strings.IndexByte("VCMPW", field[0]) >= 0 {
				fields = append(fields, string(field))
			}
		}
		return fmt.Sprintf("< %c %q", l.typ, fields)
	case len(l.body) < l.size:
		return fmt.Sprintf("%c %c %q... and to its end %q (%d bytes)", l.direction, l.typ, l.body, l.end, l.size)
	default:
		return fmt.Sprintf("%c %c %q", l.direction, l.typ, l.body)
	}
}

// String formats the transcript, oldest line first; ">" is towards the server.
func (t *transcript) String() string {
	var b strings.Builder
	for i := max(0, t.n-len(t.lines)); i < t.n; i++ {
		fmt.Fprintf(&b, "\t%s\n", &t.lines[i%len(t.lines)])
	}
	return b.String()
}
