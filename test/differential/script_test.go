package differential

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// script is what one client does on one connection.
type script struct {
	about string // what it shows, if it is kept
	// cut is the seed for splitting the bytes into pieces; 0 means no splitting.
	cut   uint64
	steps []step
	// free means that the replies cannot be compared: see generateAs.
	free bool
}

// namesEpochs reports whether the client sets the epoch for which it writes.
func (s script) namesEpochs() bool { return strings.Contains(s.String(), "fencepost.") }

// step is a message or a wait. As text it is its name and its words:
//
//	Query "text" · Parse "name" "text" oid… · Describe S|P "name" · Close S|P "name"
//	Bind "portal" "statement" [formats=1,0] [results=1] ("value"|null)…
//	Execute "portal" rows · Sync · Flush · CopyData "data" · CopyDone · CopyFail "why"
//	FunctionCall oid [formats=1] [results=1] ("value"|null)…
//	Message t "body" · Bytes "as they are" · Terminate · Hangup
//	Half n: the next message is split after n bytes; the rest waits until the server does
//	Cancel: cancels once the server sleeps because of a statement
//	Cancel now: cancels whatever it does
//	Beside "sql": run by an administrator
//	wait ready: for a ReadyForQuery, a CopyInResponse or the end
//	wait answer: for any message
type step struct {
	name  string
	words []word
}

// word is quoted text, or one of a step's other words.
type word struct {
	text   string
	quoted bool
}

func quoted(s string) word { return word{s, true} }
func bare(s string) word   { return word{s, false} }

var (
	waitReady  = step{"wait", []word{bare("ready")}}
	waitAnswer = step{"wait", []word{bare("answer")}}
	syncStep   = step{name: "Sync"}
	flushStep  = step{name: "Flush"}
)

func query(sql string) step { return step{"Query", []word{quoted(sql)}} }

func (s step) String() string {
	var b strings.Builder
	b.WriteString(s.name)
	for _, w := range s.words {
		b.WriteByte(' ')
		if w.quoted {
			b.WriteString(strconv.Quote(w.text))
		} else {
			b.WriteString(w.text)
		}
	}
	return b.String()
}

// text returns the i-th word, "" if there is none.
func (s step) text(i int) string {
	if i < len(s.words) {
		return s.words[i].text
	}
	return ""
}

// types are the messages' type bytes.
var types = map[string]byte{
	"Query": 'Q', "Parse": 'P', "Bind": 'B', "Describe": 'D', "Execute": 'E', "Close": 'C', "Sync": 'S', "Flush": 'H',
	"CopyData": 'd', "CopyDone": 'c', "CopyFail": 'f', "FunctionCall": 'F', "Terminate": 'X',
}

// bytes returns the step as it is sent, nil for waits.
func (s step) bytes() []byte {
	var body []byte
	switch s.name {
	case "wait", "Hangup", "Half", "Cancel", "Beside":
		return nil
	case "Bytes":
		return []byte(s.text(0))
	case "Message":
		return message(s.text(0)[0], []byte(s.text(1)))
	case "Query", "CopyFail":
		body = cstring(s.text(0))
	case "CopyData":
		body = []byte(s.text(0))
	case "Parse":
		body = append(cstring(s.text(0)), cstring(s.text(1))...)
		oids := s.words[min(2, len(s.words)):]
		body = binary.BigEndian.AppendUint16(body, uint16(len(oids)))
		for _, w := range oids {
			body = binary.BigEndian.AppendUint32(body, number(w.text))
		}
	case "Bind":
		body = append(cstring(s.text(0)), cstring(s.text(1))...)
		formats, values, results := s.arguments(2)
		body = append(append(append(body, formats...), values...), results...)
	case "Describe", "Close":
		body = append([]byte(s.text(0)), cstring(s.text(1))...)
	case "Execute":
		body = binary.BigEndian.AppendUint32(cstring(s.text(0)), number(s.text(1)))
	case "FunctionCall":
		formats, values, results := s.arguments(1)
		body = binary.BigEndian.AppendUint32(nil, number(s.text(0)))
		body = append(append(body, formats...), values...)
		body = append(body, results[len(results)-2:]...) // one format: 0 unless given
	}
	return message(types[s.name], body)
}

// arguments returns the formats, values and result formats from the i-th word on, each
// preceded by its count.
func (s step) arguments(i int) (formats, values, results []byte) {
	formats, results = []byte{0, 0}, []byte{0, 0}
	var n int
	for _, w := range s.words[min(i, len(s.words)):] {
		switch name, list, _ := strings.Cut(w.text, "="); {
		case w.quoted:
			n++
			values = binary.BigEndian.AppendUint32(values, uint32(len(w.text)))
			values = append(values, w.text...)
		case name == "null":
			n++
			values = binary.BigEndian.AppendUint32(values, 0xffffffff)
		case name == "formats":
			formats = shorts(list)
		case name == "results":
			results = shorts(list)
		}
	}
	return formats, append(binary.BigEndian.AppendUint16(nil, uint16(n)), values...), results
}

// shorts returns the numbers of a list, preceded by their count.
func shorts(list string) []byte {
	items := strings.Split(list, ",")
	b := binary.BigEndian.AppendUint16(nil, uint16(len(items)))
	for _, it := range items {
		b = binary.BigEndian.AppendUint16(b, uint16(number(it)))
	}
	return b
}

func number(s string) uint32 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return uint32(n)
}

func cstring(s string) []byte { return append([]byte(s), 0) }

func message(typ byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4)), body...)
}

// parseScript parses a script as String writes it. Lines that begin with < are a
// server's replies; they are comments.
func parseScript(text string) (script, error) {
	var s script
	for i, line := range strings.Split(text, "\n") {
		head, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case head == "" || head[0] == '<':
		case head == "#":
			s.about += rest + "\n"
		case head == "cut":
			n, err := strconv.ParseUint(rest, 10, 64)
			if err != nil {
				return s, fmt.Errorf("line %d: %w", i+1, err)
			}
			s.cut = n
		case head == "wait":
			s.steps = append(s.steps, step{head, []word{bare(rest)}})
		case head == ">":
			st, err := parseStep(rest)
			if err != nil {
				return s, fmt.Errorf("line %d: %w", i+1, err)
			}
			s.steps = append(s.steps, st)
		default:
			return s, fmt.Errorf("line %d: %q is not a step", i+1, line)
		}
	}
	return s, nil
}

func parseStep(line string) (step, error) {
	name, rest, _ := strings.Cut(line, " ")
	if _, ok := types[name]; !ok && !slices.Contains([]string{"Message", "Bytes", "Hangup", "Half", "Cancel", "Beside"}, name) {
		return step{}, fmt.Errorf("%q is not a message", name)
	}
	s := step{name: name}
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		if rest[0] != '"' {
			var w string
			w, rest, _ = strings.Cut(rest, " ")
			s.words = append(s.words, bare(w))
			continue
		}
		q, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return s, fmt.Errorf("%s: %w", rest, err)
		}
		w, err := strconv.Unquote(q)
		if err != nil {
			return s, fmt.Errorf("%s: %w", q, err)
		}
		s.words, rest = append(s.words, quoted(w)), rest[len(q):]
	}
	return s, nil
}

// String formats the script as a transcript without replies.
func (s script) String() string {
	var b strings.Builder
	for line := range strings.Lines(s.about) {
		b.WriteString("# " + line)
	}
	if s.cut != 0 {
		fmt.Fprintf(&b, "cut %d\n", s.cut)
	}
	for _, st := range s.steps {
		if st.name == "wait" {
			fmt.Fprintln(&b, st)
		} else {
			fmt.Fprintln(&b, ">", st)
		}
	}
	return b.String()
}
