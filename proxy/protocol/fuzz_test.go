package protocol

import (
	"bytes"
	"errors"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/gate"
)

// fuzzMachine is a session's machine between startup and end.
func fuzzMachine(md Mode, st *fencing.Status) *Machine {
	m := New(Config{
		Mode: md, Version: 18, Status: func() *fencing.Status { return st }, Cache: sqltext.NewCache(1 << 20),
		Fence: 7, Resource: "r", Worker: "w", Incarnation: "i",
		Unfenced: &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: "only reads"},
	})
	m.epochs.current = st.Epoch
	return m
}

// unknownStatus is that of a connection without a resource.
var unknownStatus = &fencing.Status{}

// standings are those that a fenced machine is fuzzed with.
var standings = []*fencing.Status{
	{Role: fencing.Leader, Epoch: 5, Holder: fencing.Record{Epoch: 5, Worker: "w"}},
	{Role: fencing.Follower, Holder: fencing.Record{Epoch: 5, Worker: "other"}},
	{Role: fencing.Leader, Epoch: 5, Lapsed: true, Holder: fencing.Record{Epoch: 5, Worker: "w"}},
	{Role: fencing.Follower, Vacant: true},
}

// feed gives data to take in pieces of at most chunk bytes, as a pump does:
// what was not taken stays in front of the next piece.
func feed(data []byte, chunk int, take func(in []byte) (n int, over bool)) {
	var have []byte
	for len(data) > 0 {
		k := min(max(chunk, 1), len(data))
		have = append(have, data[:k]...)
		data = data[k:]
		n, over := take(have)
		if over {
			return
		}
		have = append([]byte(nil), have[n:]...)
	}
}

// pumpUp passes data through m.FromClient and returns what the server gets.
func pumpUp(t *testing.T, m *Machine, data []byte, chunk int) (out []byte) {
	var p gate.Plan
	var scratch []byte
	feed(data, chunk, func(in []byte) (off int, over bool) {
		for {
			p.Reset(in[off:])
			n, need, err := m.FromClient(in[off:], &p)
			if n < 0 || n > len(in)-off {
				t.Fatalf("took %d of %d bytes", n, len(in)-off)
			}
			var b []byte
			b, scratch = p.Bytes(scratch)
			out = append(out, b...)
			off += n
			switch {
			case errors.Is(err, ErrBug):
				t.Fatal(err)
			case err != nil, need.Kind == NeedTerminal, need.Kind == NeedRoom:
				return off, true
			case need.Kind == NeedNothing && off < len(in):
				t.Fatalf("stopped at %d of %d bytes without a need", off, len(in))
			case need.Kind == NeedMore, need.Kind == NeedNothing:
				return off, false
			case need.Kind == NeedRegister:
				m.Answer(Answer{Need: NeedRegister})
			case need.Kind == NeedAnalysis:
				m.Answer(Answer{Need: NeedAnalysis, Text: m.config.Cache.Analyze(need.Text, need.Settings)})
			default:
				m.Answer(Answer{Need: need.Kind})
			}
		}
	})
	return out
}

// framed reports whether b is a row of messages, the last one perhaps cut, or a
// header over which the server ends the connection.
func framed(b []byte) bool {
	for len(b) > 0 {
		f, ok, err := wire.PeekClientFrame(b)
		if err != nil {
			return len(b) == wire.HeaderLen
		}
		if !ok {
			return true
		}
		b = b[min(f.Size, len(b)):]
	}
	return true
}

func addClientSeeds(f *testing.F) {
	msgs := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	query := func(sql string) []byte { return wire.AppendQuery(nil, []byte(sql)) }
	for _, seed := range [][]byte{
		query("select 1"),
		msgs(query("begin"), query("insert into t values (1)"), query("commit; insert into t values (2)")),
		msgs(query("show fencepost.role"), query("set fencepost.epoch = 5"), query("vacuum t"), query("prepare p as select 1"), query("discard all")),
		msgs(wire.AppendParse(nil, "s", "insert into t values ($1)"), wire.AppendRun(nil, "p", "s", []byte("1")), wire.AppendSync(nil)),
		msgs(wire.AppendParse(nil, "", "call p()"), wire.AppendRun(nil, "", ""), []byte("H\x00\x00\x00\x04"), wire.AppendSync(nil)),
		msgs(query("copy t from stdin"), []byte("d\x00\x00\x00\x09abcde"), []byte("c\x00\x00\x00\x04")),
		[]byte("F\x00\x00\x00\x0e\x00\x00\x03\xbd\x00\x00\x00\x00\x00\x00"),
		[]byte("B\x00\x00\x00\x06\x00\x00"), []byte("B\x00\x00\x00\x05x"), []byte("P\x00\x00\x00\x05x"), []byte("D\x00\x00\x00\x04"),
		[]byte("C\x00\x00\x00\x05S"), []byte("E\x00\x00\x00\x04"), []byte("Q\xff\xff\xff\xff"), []byte("Q\x00\x00\x00\x03"), []byte("Q\x3f\xff\xff\xffselect"),
		msgs(query("select 1"), []byte("X\x00\x00\x00\x04"), query("select 2")),
		msgs(query("select 1\x00select 2")), {0}, {},
	} {
		for _, chunk := range []byte{1, 7, 255} {
			f.Add(seed, chunk, byte(chunk%6))
		}
	}
}

// FuzzClientFrames: whatever a client sends, in whatever pieces, the server gets
// nothing but whole messages in order, and without a fence exactly the client's
// bytes.
func FuzzClientFrames(f *testing.F) {
	addClientSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte, chunk, kind byte) {
		plain := pumpUp(t, fuzzMachine(ModePassing, unknownStatus), data, int(chunk))
		if !bytes.HasPrefix(data, plain) {
			t.Fatalf("the server got %q of %q", plain, data)
		}
		if whole := pumpUp(t, fuzzMachine(ModePassing, unknownStatus), data, len(data)); !bytes.Equal(whole, plain) {
			t.Fatalf("in pieces of %d the server got %q, in one piece %q", chunk, plain, whole)
		}
		m := fuzzMachine(ModeReadOnly, unknownStatus)
		if kind %= 5; kind < 4 {
			m = fuzzMachine(ModeFenced, standings[kind])
		}
		if out := pumpUp(t, m, data, int(chunk)); !framed(out) {
			t.Fatalf("the server got %q, which is no row of messages", out)
		}
	})
}

// fuzzScripts are what the client sent before the fuzzed replies come.
var fuzzScripts = [][]byte{
	nil,
	wire.AppendQuery(nil, []byte("insert into t values (1)")),
	wire.AppendQuery(nil, []byte("begin; insert into t values (1); commit; insert into t values (2)")),
	wire.AppendSync(wire.AppendRun(wire.AppendParse(nil, "s", "insert into t values ($1)"), "p", "s", []byte("1"))),
	wire.AppendQuery(nil, []byte("show fencepost.role")),
	append(wire.AppendQuery(nil, []byte("copy t from stdin")), "d\x00\x00\x00\x05xc\x00\x00\x00\x04S\x00\x00\x00\x04"...),
	[]byte("F\x00\x00\x00\x0e\x00\x00\x03\xbd\x00\x00\x00\x00\x00\x00"),
}

// pumpDown passes data through m.FromServer and returns what the client gets, and
// how much was taken.
func pumpDown(t *testing.T, m *Machine, data []byte, chunk int) (out []byte, taken int) {
	var p gate.Segments
	var scratch []byte
	feed(data, chunk, func(in []byte) (int, bool) {
		p.Reset(in)
		n, events, err := m.FromServer(in, &p)
		if n < 0 || n > len(in) {
			t.Fatalf("took %d of %d bytes", n, len(in))
		}
		var b []byte
		b, scratch = p.Bytes(scratch)
		out = append(out, b...)
		taken += n
		for _, e := range events {
			if e.Kind == EventEnded || e.Kind == EventSuperseded {
				return n, true
			}
		}
		return n, err != nil
	})
	return out, taken
}

// FuzzServerReplies: whatever the server answers, nothing panics, the client
// gets whole messages, and without a fence the server's bytes as they are.
func FuzzServerReplies(f *testing.F) {
	ready, failed := wire.AppendReadyForQuery(nil, 'I'), AppendRefusal(nil, "ERROR", fencing.TwoPhaseRefusal)
	for _, seed := range [][]byte{
		append([]byte("C\x00\x00\x00\x0fINSERT 0 1\x00"), ready...),
		append(append([]byte(nil), failed...), ready...),
		AppendRefusal(nil, "FATAL", &fencing.Refusal{SQLState: "57P01", Message: "terminating connection"}),
		append([]byte("1\x00\x00\x00\x042\x00\x00\x00\x04C\x00\x00\x00\x0fINSERT 0 1\x003\x00\x00\x00\x04"), ready...),
		[]byte("G\x00\x00\x00\x07\x00\x00\x00"), []byte("D\x00\x00\x00\x06\xff\xff"), []byte("T\x00\x00\x00\x04"), []byte("Z\x00\x00\x00\x04"),
		[]byte("E\x00\x00\x00\x04"), []byte("E\x00\x00\x00\x06S\x00"), []byte("S\x00\x00\x00\x04"), []byte("C\x00\x00\x00\x04"), []byte("Z\xff\xff\xff\xff"),
		append(wire.AppendParameterStatus(nil, "client_encoding", "SJIS"), ready...),
	} {
		for kind := range byte(42) {
			f.Add(seed, kind%3+1, kind)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, chunk, kind byte) {
		script := fuzzScripts[int(kind)%len(fuzzScripts)]
		m := fuzzMachine(ModePassing, unknownStatus)
		pumpUp(t, m, script, len(script))
		out, taken := pumpDown(t, m, data, int(chunk))
		if !bytes.HasPrefix(data[:taken], out) {
			t.Fatalf("the client got %q of %q", out, data[:taken])
		}
		m = fuzzMachine(ModeReadOnly, unknownStatus)
		if k := int(kind) / len(fuzzScripts) % 5; k < 4 {
			m = fuzzMachine(ModeFenced, standings[k])
		}
		pumpUp(t, m, script, len(script))
		if out, _ := pumpDown(t, m, data, int(chunk)); !framed(out) {
			t.Fatalf("the client got %q, which is no row of messages", out)
		}
	})
}

// FuzzErrorEdit: editing an error without a change keeps its fields, twice is
// once, and a dropped field is gone while the others stay.
func FuzzErrorEdit(f *testing.F) {
	f.Add(AppendRefusal(nil, "ERROR", fencing.TwoPhaseRefusal)[wire.HeaderLen:], byte('W'))
	f.Add([]byte("SERROR\x00C42601\x00Mno\x00P7\x00\x00"), byte('P'))
	f.Add([]byte("S\x00\x00"), byte('S'))
	f.Add([]byte("M"), byte('M'))
	f.Add([]byte{}, byte(0))
	f.Fuzz(func(t *testing.T, body []byte, gone byte) {
		msg := append([]byte{'E', 0, 0, 0, 0}, body...)
		same := wire.EditError(nil, msg, func(_ byte, v []byte) ([]byte, bool) { return v, true })
		if fr, ok, err := wire.PeekFrame(same); !ok || err != nil || fr.Size != len(same) {
			t.Fatalf("%q is not one message", same)
		}
		if twice := wire.EditError(nil, same, func(_ byte, v []byte) ([]byte, bool) { return v, true }); !bytes.Equal(twice, same) {
			t.Fatalf("twice is %q, once %q", twice, same)
		}
		if before, ok := wire.DecodeError(body); ok {
			if after, ok := wire.DecodeError(same[wire.HeaderLen:]); !ok || after != before {
				t.Fatalf("%+v became %+v", before, after)
			}
		}
		var fields, kept []byte
		wire.EditError(nil, same, func(field byte, v []byte) ([]byte, bool) { fields = append(fields, field); return v, true })
		without := wire.EditError(nil, same, func(field byte, v []byte) ([]byte, bool) { return v, field != gone })
		wire.EditError(nil, without, func(field byte, v []byte) ([]byte, bool) { kept = append(kept, field); return v, true })
		if want := bytes.ReplaceAll(fields, []byte{gone}, nil); !bytes.Equal(kept, want) {
			t.Fatalf("without %q: fields %q, want %q", gone, kept, want)
		}
		shifted := wire.EditError(nil, same, func(_ byte, v []byte) ([]byte, bool) { return wire.ShiftPosition(v, 3), true })
		if !framed(shifted) || len(shifted) > len(same) {
			t.Fatalf("shifted to %q", shifted)
		}
	})
}
