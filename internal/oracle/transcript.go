package oracle

import (
	"bytes"
	"fmt"
	"strings"
)

// transcript keeps the last messages of both directions.
type transcript struct {
	lines [60]string
	n     int
}

const longestLine = 300

func (t *transcript) add(format string, args ...any) {
	t.lines[t.n%len(t.lines)] = fmt.Sprintf(format, args...)
	t.n++
}

func (t *transcript) sent(f frame) { t.message('>', f) }

func (t *transcript) received(f frame) {
	if f.typ == 'E' || f.typ == 'N' {
		fields := []string{}
		for _, field := range bytes.Split(f.body, []byte{0}) {
			if len(field) > 1 && strings.IndexByte("VCMPW", field[0]) >= 0 {
				fields = append(fields, string(field))
			}
		}
		t.add("< %c %q", f.typ, fields)
		return
	}
	t.message('<', f)
}

func (t *transcript) message(direction byte, f frame) {
	if n := len(f.body); n > longestLine {
		t.add("%c %c %q... and to its end %q (%d bytes)", direction, f.typ, f.body[:longestLine], f.body[max(longestLine, n-longestLine):], f.size)
		return
	}
	t.add("%c %c %q", direction, f.typ, f.body)
}

// String is the transcript, the oldest line first; ">" goes to the server.
func (t *transcript) String() string {
	var b strings.Builder
	for i := max(0, t.n-len(t.lines)); i < t.n; i++ {
		fmt.Fprintf(&b, "\t%s\n", t.lines[i%len(t.lines)])
	}
	return b.String()
}
