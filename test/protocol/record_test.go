package protocol

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// tap stands between Fencepost and Postgres and records what passes.
type tap struct {
	addr  string
	mu    sync.Mutex
	conns []*tapped
}

// tapped is one connection's bytes, to the server and from it.
type tapped struct {
	mu       sync.Mutex
	up, down []byte
}

func newTap(t *testing.T, server string) *tap {
	t.Helper()
	p := &tap{}
	p.addr = fixture.NewRelay(t, "tcp", server, func() fixture.Passing {
		r := &tapped{}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns = append(p.conns, r)
		return fixture.Passing{ToServer: r.keep(&r.up), ToClient: r.keep(&r.down)}
	}).Addr
	return p
}

// keep returns a function that adds what passes to the bytes of one direction.
func (r *tapped) keep(into *[]byte) func([]byte) []byte {
	return func(b []byte) []byte {
		r.mu.Lock()
		defer r.mu.Unlock()
		*into = append(*into, b...)
		return b
	}
}

// last is the newest connection.
func (p *tap) last() *tapped {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[len(p.conns)-1]
}

// take returns what passed since the last call, as lines.
func (r *tapped) take() (up, down []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	up, down = clientLines(r.up), serverLines(split(r.down))
	r.up, r.down = nil, nil
	return up, down
}

// split cuts a stream into messages.
func split(b []byte) (all []wiretest.Message) {
	for len(b) >= 5 {
		n := 1 + int(binary.BigEndian.Uint32(b[1:]))
		if n > len(b) {
			break
		}
		all = append(all, wiretest.Message{Type: b[0], Body: b[5:n]})
		b = b[n:]
	}
	return all
}

// texts cuts NUL-terminated strings off the front of a body.
func texts(body []byte, n int) (found []string, rest string) {
	rest = string(body)
	for range n {
		var s string
		s, rest, _ = strings.Cut(rest, "\x00")
		found = append(found, s)
	}
	return found, rest
}

var clientNames = map[byte]string{'S': "Sync", 'H': "Flush", 'X': "Terminate", 'c': "CopyDone", 'd': "CopyData", 'f': "CopyFail", 'F': "FunctionCall"}

// clientLines shows what a client sent; a stream that begins with a startup
// packet, that too.
func clientLines(b []byte) (out []string) {
	if len(b) > 8 && b[0] == 0 {
		n := int(binary.BigEndian.Uint32(b))
		fields, _ := texts(b[8:n], strings.Count(string(b[8:n-1]), "\x00"))
		line := "StartupMessage 3.0"
		for i := 0; i+1 < len(fields); i += 2 {
			line += fmt.Sprintf(" %s=%q", fields[i], fields[i+1])
		}
		out, b = append(out, line), b[n:]
	}
	for _, m := range split(b) {
		line := clientNames[m.Type]
		switch m.Type {
		case 'Q':
			s, _ := texts(m.Body, 1)
			line = "Query " + quote(s[0])
		case 'P':
			s, _ := texts(m.Body, 2)
			line = fmt.Sprintf("Parse %q %s", s[0], quote(s[1]))
		case 'B':
			s, rest := texts(m.Body, 2)
			line = fmt.Sprintf("Bind %q to %q%s", s[0], s[1], params(rest))
		case 'D', 'C':
			line = map[byte]string{'D': "Describe", 'C': "Close"}[m.Type] + map[byte]string{'S': " statement ", 'P': " portal "}[m.Body[0]]
			s, _ := texts(m.Body[1:], 1)
			line += fmt.Sprintf("%q", s[0])
		case 'E':
			s, rest := texts(m.Body, 1)
			line = fmt.Sprintf("Execute %q", s[0])
			if n := binary.BigEndian.Uint32([]byte(rest)); n > 0 {
				line += fmt.Sprintf(", %d row(s) at most", n)
			}
		case 'd':
			line += fmt.Sprintf(" %q", m.Body)
		}
		out = append(out, line)
	}
	return out
}

// params shows the text parameters of a Bind.
func params(rest string) (line string) {
	b := []byte(rest)
	formats := int(binary.BigEndian.Uint16(b))
	b = b[2+2*formats:]
	n := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	for range n {
		size := int32(binary.BigEndian.Uint32(b))
		b = b[4:]
		if size < 0 {
			line += " NULL"
			continue
		}
		line += fmt.Sprintf(" %q", b[:size])
		b = b[size:]
	}
	return line
}

var serverNames = map[byte]string{
	'1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete", 'n': "NoData", 'I': "EmptyQueryResponse", 's': "PortalSuspended",
	'G': "CopyInResponse", 'H': "CopyOutResponse", 'c': "CopyDone", 'd': "CopyData", 't': "ParameterDescription", 'V': "FunctionCallResponse",
	'T': "RowDescription", 'R': "Authentication", 'K': "BackendKeyData", 'v': "NegotiateProtocolVersion",
}

// serverLines shows what a server sent.
func serverLines(all []wiretest.Message) (out []string) {
	for _, m := range all {
		line := serverNames[m.Type]
		switch m.Type {
		case 'E', 'N':
			f := m.Fields()
			line = fmt.Sprintf("%s %s %s %s", map[byte]string{'E': "ErrorResponse", 'N': "NoticeResponse"}[m.Type], f['V'], f['C'], f['M'])
			if p := f['P']; p != "" {
				line += ", position " + p
			}
			if w := f['W']; w != "" {
				line += ", context " + quote(w)
			}
		case 'C':
			s, _ := texts(m.Body, 1)
			line = "CommandComplete " + s[0]
		case 'Z':
			line = "ReadyForQuery " + map[byte]string{'I': "idle", 'T': "in a transaction", 'E': "in a failed transaction"}[m.Body[0]]
		case 'S':
			s, _ := texts(m.Body, 2)
			line = fmt.Sprintf("ParameterStatus %s=%s", s[0], s[1])
		case 'A':
			s, _ := texts(m.Body[4:], 2)
			line = fmt.Sprintf("NotificationResponse %s %q", s[0], s[1])
		case 'D':
			line = "DataRow" + params("\x00\x00"+string(m.Body))
		}
		out = append(out, line)
	}
	return out
}

var blanks = regexp.MustCompile(`\s+`)

// quote shows a text on one line, the middle of a long one left out.
func quote(s string) string {
	s = blanks.ReplaceAllString(s, " ")
	const most = 150
	if len(s) > most {
		s = s[:most-50] + " ... " + s[len(s)-40:]
	}
	return `"` + s + `"`
}

// merge lays what one end sent beside what the other end got: lines of both
// are marked by a blank, those that Fencepost took out by "-", those that it put
// in by "+". It is a longest common subsequence.
func merge(arrow string, sent, got []string) (out []string) {
	best := make([][]int, len(sent)+1)
	for i := range best {
		best[i] = make([]int, len(got)+1)
	}
	for i := len(sent) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			best[i][j] = max(best[i+1][j], best[i][j+1])
			if sent[i] == got[j] {
				best[i][j] = best[i+1][j+1] + 1
			}
		}
	}
	taken := "" // the kind of message taken out last: what stands for it comes next
	for i, j := 0, 0; i < len(sent) || j < len(got); {
		spare := j < len(got) && best[i][j+1] == best[i][j]
		switch {
		case spare && taken != "" && kindOf(got[j]) == taken, spare && (i == len(sent) || best[i+1][j] < best[i][j]):
			out, taken = append(out, arrow+" + "+got[j]), ""
			j++
		case i < len(sent) && best[i+1][j] == best[i][j]:
			out, taken = append(out, arrow+" - "+sent[i]), kindOf(sent[i])
			i++
		default:
			out, taken = append(out, arrow+"   "+sent[i]), ""
			i, j = i+1, j+1
		}
	}
	return out
}

func kindOf(line string) string {
	word, _, _ := strings.Cut(line, " ")
	return word
}
