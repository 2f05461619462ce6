package oracle

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// stream passes a session of fence 1 to an observer, as if it stood between a proxy and
// a server.
type stream struct {
	*Observer
	complaints []string
}

const (
	prepared1 = "fencepost_check_1"
	front1    = "fencepost_check_1_front"
	reading1  = "fencepost_read_1"
	asking1   = "fencepost_check_1_verdict"
)

func newStream(facts Facts) *stream {
	s := &stream{}
	facts.Fence, facts.Incarnation = 1, "i1"
	s.Observer = New(facts, func(c string) { s.complaints = append(s.complaints, c) })
	s.up(wiretest.Parse(prepared1, fencing.CheckSQL(1, "w", "i1", false)), wiretest.Parse(front1, fencing.FrontCheckSQL(1, "w", "i1", false, 3)),
		wiretest.Parse(reading1, fencing.ReadOnlySQL), wiretest.Sync())
	s.down("1", "1", "1", "Z I")
	return s
}

func (s *stream) up(parts ...[]byte) { _ = s.Sent(bytes.Join(parts, nil)) }

// down passes replies: a type, and for some of them the rest of the body.
func (s *stream) down(answers ...string) {
	for _, a := range answers {
		typ, rest, _ := strings.Cut(a, " ")
		body := []byte(rest)
		switch typ {
		case "C":
			body = append(body, 0)
		case "E":
			body = []byte("SERROR\x00VERROR\x00C" + rest + "\x00\x00")
		case "S":
			name, value, _ := strings.Cut(rest, "=")
			body = []byte(name + "\x00" + value + "\x00")
		case "G":
			body = []byte{0, 0, 0}
		}
		s.Received(wiretest.Msg(typ[0], body))
	}
}

// asks plays a verdict, and how it is answered.
func (s *stream) asks(answer string) {
	s.up(wiretest.Close('S', asking1), wiretest.Parse(asking1, fencing.VerdictSQL(1, "w", "i1", false)), asked(3, 3), wiretest.Flush())
	s.down("3", "1", "2", answer, "3")
}

// asked is a verdict by messages, with these epochs.
func asked(told, held uint64) []byte { return runOf(asking1, told, held) }

// checked is a check by messages, with these epochs.
func checked(told, held uint64) []byte { return runOf(prepared1, told, held) }

func runOf(name string, told, held uint64) []byte {
	params := binary.BigEndian.AppendUint16(nil, 1)
	params = binary.BigEndian.AppendUint16(params, 1)
	params = binary.BigEndian.AppendUint16(params, 2)
	for _, n := range []uint64{told, held} {
		params = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(params, 8), n)
	}
	bind := wiretest.Msg('B', []byte("portal\x00"+name+"\x00"), params, []byte{0, 0})
	return bytes.Join([][]byte{bind, wiretest.Execute("portal", 0), wiretest.Close('P', "portal")}, nil)
}

func readOnlyRun() []byte {
	return bytes.Join([][]byte{wiretest.Bind("portal", reading1), wiretest.Execute("portal", 0), wiretest.Close('P', "portal")}, nil)
}

const (
	guard = "EXECUTE " + prepared1 + "(3,3);"
	stale = "EXECUTE " + prepared1 + "(0,0);"
	write = "insert into t values (1)"
)

// names says that resource a is fence 1, that of the startup, and b fence 2.
func (s *stream) names() {
	s.Named("a", 1, "i1")
	s.Named("b", 2, "i2")
}

// chosenCheck is the check of these fences for a choice.
func chosenCheck(value string, fences ...int32) string {
	var all []fencing.Subject
	for _, f := range fences {
		all = append(all, fencing.Subject{Fence: f, Incarnation: "i" + itoa(int64(f)), Told: 3, Held: 3})
	}
	return fencing.ChosenCheckSQL("w", value, all)
}
