package machinetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// Session is what a session begins with.
type Session struct {
	Version             int
	Fence               int32
	Worker, Incarnation string
	Strings             string // standard_conforming_strings
	Encoding            string // client_encoding
	Mode                string // "" with a resource, "passing" or "read-only" without
	Discards            bool   // the resource discards stale writes
	Status              fencing.Status
}

// Side is where an input comes from.
type Side byte

const (
	Client Side = 'C'
	Server Side = 'S'
	Status Side = '='
)

// Input is something that happens to the machine: bytes of whole messages, or another
// status.
type Input struct {
	Side   Side
	Bytes  []byte
	Status fencing.Status
}

// placeholder stands for the random part of the checks' names.
const placeholder = "xxxxxxxxxxxx"

var random = regexp.MustCompile(`(fencepost(?:_check|_read)?_)([0-9a-z]{12})(_\d)`)

// Placed returns b with the placeholder in the names of the checks.
func Placed(b []byte) []byte { return named(b, placeholder) }

// named returns b with another random part in the names of the checks.
func named(b []byte, part string) []byte {
	return random.ReplaceAll(b, []byte("${1}"+part+"${3}"))
}

func (s Session) String() string {
	line := fmt.Sprintf("session version=%d fence=%d worker=%q incarnation=%q strings=%s encoding=%q ",
		s.Version, s.Fence, s.Worker, s.Incarnation, s.Strings, s.Encoding)
	if s.Mode != "" {
		line += s.Mode + " "
	}
	if s.Discards {
		line += "discards "
	}
	return line + statusLine(s.Status)
}

// parseTraits reads the words between the encoding and the status of a session.
func (s *Session) parseTraits(line string) error {
	for _, word := range strings.Fields(line[strings.LastIndexByte(line, '"')+1:]) {
		switch word {
		case "discards":
			s.Discards = true
		case "passing", "read-only":
			s.Mode = word
		default:
			return fmt.Errorf("read %q: what is %q?", line, word)
		}
	}
	return nil
}

func statusLine(st fencing.Status) string {
	line := fmt.Sprintf("status: %s epoch=%d holder=%q,%d", st.Role, st.Epoch, st.Holder.Worker, st.Holder.Epoch)
	if st.Lapsed {
		line += " lapsed"
	}
	if st.Vacant {
		line += " vacant"
	}
	if n := st.Holder.Guards; n > 0 {
		line += fmt.Sprintf(" guards=%d", n)
	}
	return line
}

func parseStatus(line string) (st fencing.Status, err error) {
	var role string
	if _, err := fmt.Sscanf(line, "status: %s epoch=%d holder=%q,%d", &role, &st.Epoch, &st.Holder.Worker, &st.Holder.Epoch); err != nil {
		return st, fmt.Errorf("read %q: %w", line, err)
	}
	for st.Role = 0; st.Role.String() != role; st.Role++ {
		if st.Role > fencing.Superseded {
			return st, fmt.Errorf("no role %q", role)
		}
	}
	for _, word := range strings.Fields(line[strings.LastIndexByte(line, '"')+1:])[1:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "lapsed":
			st.Lapsed = true
		case "vacant":
			st.Vacant = true
		case "guards":
			if st.Holder.Guards, err = strconv.Atoi(value); err != nil {
				return st, fmt.Errorf("read %q: %w", line, err)
			}
		default:
			return st, fmt.Errorf("read %q: what is %q?", line, word)
		}
	}
	return st, nil
}

// partial stands in the place of a type in front of bytes that are no whole message.
const partial = "part "

// lines shows messages, each after a mark. The last one of the client need not be whole; for the
// server it is an error.
func lines(out *strings.Builder, mark string, b []byte) error {
	for len(b) > 0 {
		size := 0
		if len(b) >= 5 {
			size = 1 + int(binary.BigEndian.Uint32(b[1:]))
		}
		if size < 5 || size > len(b) {
			if mark == "S>" || mark == "<=" {
				return fmt.Errorf("a message of the server is not whole: %q", b)
			}
			fmt.Fprintf(out, "%s %sb%q\n", mark, partial, b)
			return nil
		}
		fmt.Fprintf(out, "%s %c", mark, b[0])
		body := b[5:size]
		for len(body) > 0 {
			s, rest, ok := bytes.Cut(body, []byte{0})
			if !ok || !printable(s) || len(s) == 0 && (!printable(bytes.ReplaceAll(rest, []byte{0}, nil)) || len(body) > 1 && len(bytes.Trim(body, "\x00")) == 0) {
				fmt.Fprintf(out, " b%q", body)
				break
			}
			fmt.Fprintf(out, " %q", s)
			body = rest
		}
		out.WriteByte('\n')
		b = b[size:]
	}
	return nil
}

func printable(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r > '~' })
}

// message reads what lines has shown of one.
func message(line string) ([]byte, error) {
	if line == "" {
		return nil, errors.New("an empty message")
	}
	if rest, ok := strings.CutPrefix(line, partial+"b"); ok {
		bytes, err := strconv.Unquote(rest)
		return []byte(bytes), err
	}
	b := []byte{line[0], 0, 0, 0, 0}
	rest := strings.TrimSpace(line[1:])
	for rest != "" {
		value, raw := strings.CutPrefix(rest, "b")
		quoted, err := strconv.QuotedPrefix(value)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", line, err)
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("read %q: %w", line, err)
		}
		if b = append(b, text...); !raw {
			b = append(b, 0)
		}
		rest = strings.TrimSpace(value[len(quoted):])
	}
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b, nil
}

// Parse reads a transcript: the session, and what happens to its machine.
func Parse(text string) (s Session, inputs []Input, err error) {
	first, rest, _ := strings.Cut(text, "\n")
	if _, err := fmt.Sscanf(first, "session version=%d fence=%d worker=%q incarnation=%q strings=%s encoding=%q",
		&s.Version, &s.Fence, &s.Worker, &s.Incarnation, &s.Strings, &s.Encoding); err != nil {
		return s, nil, fmt.Errorf("read %q: %w", first, err)
	}
	at := strings.Index(first, "status: ")
	if at < 0 {
		return s, nil, fmt.Errorf("no status in %q", first)
	}
	if err := s.parseTraits(first[:at]); err != nil {
		return s, nil, err
	}
	if s.Status, err = parseStatus(first[at:]); err != nil {
		return s, nil, err
	}
	last := ""
	for line := range strings.Lines(rest) {
		line = strings.TrimSuffix(line, "\n")
		mark, what, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "= status: "):
			st, err := parseStatus(what)
			if err != nil {
				return s, nil, err
			}
			inputs = append(inputs, Input{Side: Status, Status: st})
		case mark == "C>" || mark == "S>":
			b, err := message(what)
			if err != nil {
				return s, nil, err
			}
			if mark != last {
				inputs = append(inputs, Input{Side: Side(mark[0])})
			}
			x := &inputs[len(inputs)-1]
			x.Bytes = append(x.Bytes, b...)
		}
		last = mark
	}
	return s, inputs, nil
}
