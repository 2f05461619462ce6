package protocol

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/wire"
)

// TestTextsOfASessionAreBounded: a session keeps no more than 1 MB of texts,
// whatever its client prepares, in vain or not, and whether it reads the answers
// or not. It is not parallel: others allocate.
func TestTextsOfASessionAreBounded(t *testing.T) {
	const limit = 1 << 20
	failed := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C42601\x00Msyntax error\x00\x00"))
	ready := wiretest.Msg('Z', []byte("I"))
	for _, c := range []struct {
		name   string
		rounds int
		client func(i int) []byte
		server []byte // the answer to that and what stands in front; nil: none comes
	}{
		{"statements that fail", 40, func(i int) []byte {
			return append(wiretest.Parse(fmt.Sprint("s", i), "selec '"+strings.Repeat("x", 900_000)+"'"), wiretest.Sync()...)
		}, append(failed, ready...)},
		{"statements that are prepared", 100, func(i int) []byte {
			return append(wiretest.Parse(fmt.Sprint("s", i), "select '"+strings.Repeat("x", 100_000)+"'"), wiretest.Sync()...)
		}, append(wiretest.Msg('1'), ready...)},
		{"the unnamed statement, bound to many portals", 400, func(i int) []byte {
			return append(wiretest.Parse("", fmt.Sprint("select '", i, strings.Repeat("x", 50_000), "'")), wiretest.Bind(fmt.Sprint("p", i), "")...)
		}, append(wiretest.Msg('1'), wiretest.Msg('2')...)},
		{"portals with long names", 400, func(i int) []byte {
			return append(wiretest.Parse("", "select 1"), wiretest.Bind(fmt.Sprint(i, strings.Repeat("p", 50_000)), "")...)
		}, append(wiretest.Msg('1'), wiretest.Msg('2')...)},
		{"a flood that is not answered", 400, func(i int) []byte {
			return wiretest.Parse(fmt.Sprint("s", i), "select '"+strings.Repeat("x", 20_000)+"'")
		}, nil},
		{"Queries that are not answered", 400, func(i int) []byte {
			return wiretest.Query("select '" + strings.Repeat("x", 10_000) + "'")
		}, nil},
	} {
		m := leading(16)
		m.config.Mode = ModeReadOnly // nothing of ours in front but read-only mode
		m.around = m.surroundings()
		most := 0 // by its own count
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range c.rounds {
			pumpUp(t, m, c.client(i), 1<<20)
			if c.server != nil {
				answerOurs(t, m)
				pumpDown(t, m, c.server, 1<<20)
			}
			most = max(most, m.names.textBytes()+m.pendingReplies.texts)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if most > limit {
			t.Errorf("%s: the session counts %d bytes of texts that it keeps, more than %d", c.name, most, limit)
		}
		const rest = 2 << 20 // of the cache, and of the queue of replies
		if grown := int(after.HeapAlloc) - int(before.HeapAlloc); grown > limit+rest {
			t.Errorf("%s: the session keeps %d bytes", c.name, grown) // whatever it counts
		}
		runtime.KeepAlive(m)
	}
}

// answerOurs answers what is the machine's own in front of the client's messages.
func answerOurs(t *testing.T, m *Machine) {
	t.Helper()
	for e := m.pendingReplies.front(); e != nil && e.own(); e = m.pendingReplies.front() {
		var reply []byte
		switch e.kind {
		case parse:
			reply = wiretest.Msg('1')
		case closing:
			reply = wiretest.Msg('3')
		case syncing:
			reply = wiretest.Msg('Z', []byte("I"))
		case run:
			reply = bytes.Join([][]byte{wiretest.Msg('2'), wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('3')}, nil)
		default:
			t.Fatalf("kind %d of ours is owed", e.kind)
		}
		pumpDown(t, m, reply, 1<<20)
	}
}

// preparedMachine returns the machine of a follower whose statement s is confirmed.
func preparedMachine(t *testing.T, text string) *Machine {
	t.Helper()
	m := fuzzMachine(ModeFenced, standings[1])
	pumpUp(t, m, append(wiretest.Parse("s", text), wiretest.Sync()...), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('1', nil), wiretest.Msg('Z', []byte("I"))...), 1<<20)
	return m
}

// TestRestatingCostsLittle: messages of a few bytes that name a long text do not make
// the proxy send that text for each of them.
func TestRestatingCostsLittle(t *testing.T) {
	t.Parallel()
	for _, length := range []int{maxRestated - 20, maxRestated + 1, 200 << 10} {
		m := preparedMachine(t, "begin /*"+strings.Repeat("x", length)+"*/")
		const count = 500
		in := bytes.Repeat(wiretest.Describe('S', "s"), count)
		p := &gate.Plan{}
		p.Reset(in)
		if _, _, err := m.FromClient(in, p); err != nil {
			t.Fatal(err)
		}
		if sent, _ := p.Bytes(nil); len(sent) > count*(maxRestated+200) {
			t.Errorf("%d bytes of a client's make %d for the server, with a text of %d", len(in), len(sent), length)
		}
	}
}

// TestABindOfAPreparedBeginIsWaitedFor: its text can be prepared again only for a whole
// message, so that one in two pieces must not be judged by the first.
func TestABindOfAPreparedBeginIsWaitedFor(t *testing.T) {
	t.Parallel()
	m := preparedMachine(t, "begin")
	in := append(wiretest.Bind("", "s"), wiretest.Execute("", 0)...)
	for cut := wire.HeaderLen + 3; cut < len(wiretest.Bind("", "s")); cut++ {
		p := &gate.Plan{}
		p.Reset(in[:cut])
		if n, need, err := m.FromClient(in[:cut], p); n != 0 || need.Kind != NeedMore || err != nil {
			t.Fatalf("%d bytes of the Bind: took %d, need %v, error %v", cut, n, need, err)
		}
	}
	if sent := pumpUp(t, m, in, 1<<20); !bytes.Contains(sent, []byte("begin")) {
		t.Errorf("%q goes to the server, without the text", sent)
	}
}

// TestASyncOfOursEndsTheBeliefInAName: it runs deferred triggers, which may give the name
// of a prepared statement away.
func TestASyncOfOursEndsTheBeliefInAName(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	in := bytes.Join([][]byte{
		wiretest.Parse("x", "select $1::dom"), wiretest.Bind("px", "x", "1"), wiretest.Parse("s", "discard all"), wiretest.Close('P', "px"),
		wiretest.Bind("", "s"), wiretest.Execute("", 0), wiretest.Sync(),
	}, nil)
	answers := map[byte][]byte{'P': wiretest.Msg('1'), 'B': wiretest.Msg('2'), 'C': wiretest.Msg('3'), 'E': wiretest.Msg('C', []byte("SELECT 1\x00")), 'S': wiretest.Msg('Z', []byte("I"))}
	var all []byte
	for range 4 {
		p := &gate.Plan{}
		p.Reset(in)
		n, _, err := m.FromClient(in, p)
		if err != nil {
			t.Fatal(err)
		}
		sent, _ := p.Bytes(nil)
		all, in = append(all, sent...), in[n:]
		var server []byte
		for rest := sent; len(rest) > 0; {
			f, ok, err := wire.PeekClientFrame(rest)
			if !ok || err != nil {
				t.Fatalf("%q is no message: %v", rest, err)
			}
			server, rest = append(server, answers[f.Type]...), rest[f.Size:]
		}
		pumpDown(t, m, server, 1<<20)
	}
	if len(in) > 0 || bytes.Count(all, wiretest.Sync()) != 2 {
		t.Fatalf("%d bytes are left; sent were %q, want one Sync of ours in it", len(in), all)
	}
	if bytes.Contains(all, wiretest.Bind("", "s")) {
		t.Errorf("the name is believed after a Sync of ours: %q", all)
	}
}

// TestNoticesOfAQueryAreShown: a Query that goes as messages has a Parse of ours, with
// notices of the client's.
func TestNoticesOfAQueryAreShown(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	sent := pumpUp(t, m, wiretest.Query("prepare a as select 1"), 1<<20)
	notice := wiretest.Msg('N', []byte("SNOTICE\x00VNOTICE\x00C42622\x00Midentifier will be truncated\x00\x00"))
	var server []byte
	for len(sent) > 0 {
		f, ok, err := wire.PeekClientFrame(sent)
		if !ok || err != nil {
			t.Fatalf("%q is no message: %v", sent, err)
		}
		switch {
		case f.Type == 'P' && bytes.Contains(sent[:f.Size], []byte("prepare a as")):
			server = append(append(server, notice...), wiretest.Msg('1')...)
		case f.Type == 'P':
			server = append(server, wiretest.Msg('1')...)
		case f.Type == 'B':
			server = append(server, wiretest.Msg('2')...)
		case f.Type == 'E':
			server = append(server, wiretest.Msg('C', []byte("SELECT 0\x00"))...)
		case f.Type == 'C':
			server = append(server, wiretest.Msg('3')...)
		}
		sent = sent[f.Size:]
		if f.Type == 'P' && bytes.HasSuffix(server, wiretest.Msg('1')) && bytes.Contains(server, notice) {
			break
		}
	}
	if got, _ := pumpDown(t, m, server, 1<<20); !bytes.Contains(got, []byte("42622")) {
		t.Errorf("the client gets %q", got)
	}
}

// TestABindWaitsForItsParse: a statement whose Parse is not answered is not known, and what is not
// known would go by the registry.
func TestABindWaitsForItsParse(t *testing.T) {
	t.Parallel()
	m := leading(15)
	parse := join(wiretest.Parse("s", "commit"), wiretest.Sync())
	bind := join(wiretest.Bind("", "s"), wiretest.Execute("", 0), wiretest.Sync())
	var up gate.Plan
	var down gate.Segments
	in := join(parse, bind)
	up.Reset(in)
	n, need, err := m.FromClient(in, &up)
	if n != len(parse) || need.Kind != NeedRoom || err != nil {
		t.Fatalf("%d of %d bytes, need %v: %v; want that it waits for the answer to the Parse", n, len(in), need, err)
	}
	answer := join(wiretest.Msg('1'), wiretest.Msg('Z', []byte{'I'}))
	down.Reset(answer)
	if _, _, err := m.FromServer(answer, &down); err != nil || !m.Is(Ready) {
		t.Fatalf("has room %t: %v", m.Is(Ready), err)
	}
	up.Reset(bind)
	if n, need, err := m.FromClient(bind, &up); n != len(bind) || need.Kind != NeedNothing || err != nil {
		t.Errorf("%d of %d bytes, need %v: %v", n, len(bind), need, err)
	}
}

// TestFewTextsAreParsedOnTheLoop: however many short texts come at once, the machine parses only some of them
// while it holds up the event loop, and asks for the analysis of the others.
func TestFewTextsAreParsedOnTheLoop(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]*fencing.Status{"leader": standings[0], "follower": standings[1]} {
		for kind, message := range map[string]func(i int, more string) []byte{
			"Query":  func(i int, more string) []byte { return wiretest.Query(fmt.Sprintf("(select nope%d%s)", i, more)) },
			"Parse":  func(i int, more string) []byte { return wiretest.Parse("", fmt.Sprintf("(select nope%d%s)", i, more)) },
			"SELECT": func(i int, more string) []byte { return wiretest.Query(fmt.Sprintf("select nope%d%s", i, more)) },
			"INSERT": func(i int, more string) []byte {
				return wiretest.Query(fmt.Sprintf("insert into t%d values (1%s)", i, more))
			},
		} {
			m := fuzzMachine(ModeFenced, st)
			var in []byte
			for i := range 60 {
				in = append(in, message(i, strings.Repeat(", 1 + 1", i%8))...)
			}
			var p gate.Plan
			needs := 0
			for len(in) > 0 {
				p.Reset(in)
				n, need, err := m.FromClient(in, &p)
				switch {
				case err != nil:
					t.Fatalf("%s, %s: %v", name, kind, err)
				case m.up.parsed > atOnce:
					t.Errorf("%s, %s: %d bytes were parsed in one call, want at most %d", name, kind, m.up.parsed, atOnce)
				}
				if in = in[n:]; need.Kind == NeedAnalysis {
					needs++
					m.Answer(Answer{Need: NeedAnalysis, Text: m.config.Cache.Analyze(need.Text, need.Settings)})
				}
			}
			if quick := kind == "INSERT" || kind == "SELECT" && name == "leader"; (needs == 0) != quick { // what the fast scan knows is not parsed
				t.Errorf("%s, %s: %d analyses were asked for", name, kind, needs)
			}
		}
	}
}
