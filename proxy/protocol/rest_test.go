package protocol_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// modelServer answers messages as Postgres does (PostgresMain in its postgres.c, CopyGetData in copyfromparse.c), each with success or
// with an error. 'q' is a Query that copies from the client, and 'e' an Execute that does.
type modelServer struct {
	*rand.Rand
	sent     []byte // types of messages that it has not read
	batch    bool   // it has read extended messages since the last Sync, Query or FunctionCall
	skipping bool
	copying  byte // 0, 'q' or 'e'
	syncs    bool // it has read a Sync among the data
	// unclear means that whoever sees only the messages does not know how many ReadyForQuery come, until something else is
	// answered; lost, that it cannot be known from then on; needsSync, that it is lost if something but a Sync is sent first.
	unclear, lost, needsSync bool
}

// isWork reports whether a message is neither Sync nor Flush nor part of COPY data.
func isWork(typ rune) bool { return !strings.ContainsRune("SHdcf", typ) }

// send sends a message.
func (m *modelServer) send(typ byte) {
	m.sent = append(m.sent, typ)
	m.lost = m.lost || m.needsSync && isWork(rune(typ))
	m.needsSync = m.needsSync && typ != 'S'
}

// reads reports whether the server can go on with what it has been sent.
func (m *modelServer) reads() bool { return len(m.sent) > 0 || m.copying != 0 }

// read reads the next message, or fails before it reads it, and returns what it answers.
func (m *modelServer) read() (replies [][]byte) {
	fails := m.IntN(5) == 0
	if m.copying != 0 && (len(m.sent) == 0 || fails) {
		if !fails {
			return nil
		}
		return m.failCopy()
	}
	typ := m.sent[0]
	m.sent = m.sent[1:]
	if m.copying != 0 {
		return m.copyMessage(typ)
	}
	if m.skipping && typ != 'S' {
		return nil
	}
	switch typ {
	case 'S':
		m.batch, m.skipping = false, false
		return [][]byte{ready('I')}
	case 'Q', 'F', 'q':
		m.batch, m.unclear = false, false
		first := map[byte][]byte{'Q': wiretest.Msg('I'), 'F': wiretest.Msg('V', []byte{0xff, 0xff, 0xff, 0xff}), 'q': wiretest.Msg('G', []byte{0, 0, 0})}[typ]
		if fails {
			first = failure("22012", "x")
		} else if typ == 'q' {
			m.copying = typ
			return [][]byte{first}
		}
		return [][]byte{first, ready('I')}
	case 'H', 'd', 'c', 'f':
		return nil
	}
	m.batch, m.unclear = true, false
	if fails {
		m.skipping = true
		return [][]byte{failure("22012", "x")}
	}
	if typ == 'e' {
		m.copying = typ
	}
	return map[byte][][]byte{
		'P': {wiretest.Msg('1')}, 'B': {wiretest.Msg('2')}, 'C': {wiretest.Msg('3')}, 'D': {wiretest.Msg('n')},
		'E': {wiretest.Msg('D', []byte{0, 0}), wiretest.Msg('C', []byte("SELECT 1\x00"))}, 'e': {wiretest.Msg('G', []byte{0, 0, 0})},
	}[typ]
}

// copyMessage reads a message while COPY data are due.
func (m *modelServer) copyMessage(typ byte) (replies [][]byte) {
	switch typ {
	case 'S':
		m.syncs = true
		return nil
	case 'H', 'd':
		return nil
	case 'c':
		if m.copying == 'q' {
			replies = [][]byte{ready('I')}
		}
		m.copying, m.syncs = 0, false
		return append([][]byte{wiretest.Msg('C', []byte("COPY 1\x00"))}, replies...)
	case 'f':
		return m.failCopy()
	default: // it does not belong here
		m.sent = append([]byte{typ}, m.sent...)
		defer func() { m.sent = m.sent[1:] }()
		return m.failCopy()
	}
}

// failCopy ends a COPY by an error. Only the server knows which Syncs it has read among the data, and whether it has read a
// message that does not belong there.
func (m *modelServer) failCopy() [][]byte {
	among, rest, _ := strings.Cut(strings.ReplaceAll(string(m.sent), "f", "c"), "c")
	first, _, sync := strings.Cut(rest, "S")
	syncs, work := m.syncs || strings.Contains(among, "S"), strings.ContainsFunc(among, isWork)
	m.unclear = m.unclear || syncs
	replies := [][]byte{failure("22P04", "x")}
	if m.copying == 'q' {
		m.lost = m.lost || work
		replies = append(replies, ready('I'))
	} else if syncs {
		m.lost = m.lost || work || strings.ContainsFunc(first, isWork)
		m.needsSync = !sync
	}
	m.skipping, m.copying, m.syncs = m.copying == 'e', 0, false
	return replies
}

// TestARelayKnowsWhenItIsAtRest: whatever is sent and answered in which order, the session is at rest if the
// server has read everything and no batch is open, and never before. Some drivers end a batch by a Query in place of a Sync.
func TestARelayKnowsWhenItIsAtRest(t *testing.T) {
	t.Parallel()
	messages := map[byte][]byte{
		'P': Parse("", "select 1"), 'B': Bind("", ""), 'D': Desc('P', ""), 'E': Exec("", 0), 'C': Shut('S', "s"), 'H': Flush(), 'S': Sync(), 'Q': Q("select 1"),
		'F': wiretest.Msg('F', []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0}), 'q': Q("copy t from stdin"), 'e': Exec("", 0),
		'd': wiretest.Msg('d', []byte("1\n")), 'c': wiretest.Msg('c'), 'f': wiretest.Msg('f', []byte("x\x00")),
	}
	atRest, lost := 0, 0
	for seed := range uint64(6000) {
		r := rand.New(rand.NewPCG(seed, 0))
		server := &modelServer{Rand: r}
		c := core{t, protocol.New(protocol.Config{Mode: protocol.ModePassing, Version: 18, Cache: sqltext.NewCache(1 << 20)})}
		// Without COPY, with one as drivers do it, and in any order.
		next := [][]string{
			{"P", "B", "D", "E", "C", "H", "S", "S", "Q", "Q", "F"},
			{"PBE", "PBDES", "S", "Q", "qddc", "qf", "q", "PBeS", "PBeSddcS", "qSdcQ", "PBeSdcPBES", "ddcS", "dc", "PBedcS", "PBedfS", "H"},
			{"P", "B", "E", "H", "S", "S", "Q", "q", "e", "d", "c", "c", "f"},
		}[seed%3]
		var history string
		for range 80 {
			if r.IntN(4) == 0 {
				for _, typ := range []byte(next[r.IntN(len(next))]) {
					if out, n, _, err := c.client(messages[typ]); err != nil || n == 0 || len(out) == 0 {
						t.Fatalf("seed %d: after %s, %c is not relayed: took %d, %v", seed, history, typ, n, err)
					}
					server.send(typ)
					history += string(typ)
				}
			} else if server.reads() {
				replies := server.read()
				for i, m := range replies {
					c.server(m)
					history += fmt.Sprintf(" %c<", m[0])
					if i < len(replies)-1 && c.s.Is(protocol.AtRest) {
						t.Fatalf("seed %d: after %s, at rest before %c<", seed, history, replies[i+1][0])
					}
				}
			}
			unread := strings.Trim(string(server.sent), "Hdcf") // nothing answers these
			want := unread == "" && !server.batch && !server.skipping && server.copying == 0
			got := c.s.Is(protocol.AtRest)
			if got && !want || !server.unclear && !server.lost && got != want {
				t.Fatalf("seed %d: after %s, with %q unread, at rest: %t; want %t", seed, history, server.sent, got, want)
			}
			if got {
				atRest++
			}
			if server.lost {
				lost++
			}
		}
	}
	if t.Logf("at rest %d times, lost %d times", atRest, lost); atRest < 10000 || lost < 1000 {
		t.Error("the orders do not show much")
	}
}

// TestAQueryAfterABatchThatFailsIsSkipped, as by Postgres, up to the Sync.
func TestAQueryAfterABatchThatFailsIsSkipped(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		for name, c := range map[string]*wiretest.Conn{"settled": h.connect(), "relayed": h.led(Q("select 1"))} {
			c.Send(Cat(Run("select 1/0"), Q("select 1"), Sync(), Q("select 2")))
			first, second := c.Until('Z'), c.Until('Z')
			if code := wiretest.ErrorOf(first); code != "22012" || slices.ContainsFunc(first, func(m wiretest.Message) bool { return m.Type == 'T' }) {
				t.Errorf("%s: the batch is answered by %v", name, first)
			}
			if second[0].Type != 'T' {
				t.Errorf("%s: the Query after the Sync is answered by %v", name, second)
			}
		}
	})
}

// TestARelayThatHasLostCountSkipsNothing: a COPY fails over the Parse behind it, or before it reads that. The DO after it
// fails, too. What is sent before its ReadyForQuery runs, and is looked at.
func TestARelayThatHasLostCountSkipsNothing(t *testing.T) {
	t.Parallel()
	status := leader(9)
	config := protocol.Config{Mode: protocol.ModeFenced, Version: 18, Cache: sqltext.NewCache(1 << 20), Worker: "w"}
	config.Candidacy = protocol.Candidacy{Resource: "r", Incarnation: func() string { return "i" }, Status: func() *fencing.Status { return status }}
	config.Announced, config.Registered = 9, true
	c := core{t, protocol.New(config)}
	if out, _, _, err := c.client(Q("select 1")); string(out) != string(Q("select 1")) || err != nil {
		t.Fatalf("the session is not relayed: %q, %v", out, err)
	}
	c.server(wiretest.Msg('I'), ready('I'))
	c.client(Q("copy t from stdin"))
	c.client(Parse("", "select 1"))
	c.client(Q("do 'slow'"))
	c.server(wiretest.Msg('G', []byte{0, 0, 0}), failure("P0001", "of the COPY"), ready('I'), failure("P0001", "of the DO"))
	if out, _, _, err := c.client(Q("begin; prepare transaction 'x'")); len(out) > 0 || err == nil {
		t.Errorf("sent %q, %v", out, err)
	}
}

// TestWhatWasReportedIsCarried: the lease is not confirmed when a transaction ends, and confirmed later, of which the client
// learns in the session that goes on in place of this one.
func TestWhatWasReportedIsCarried(t *testing.T) {
	t.Parallel()
	status := leader(9)
	config := protocol.Config{Mode: protocol.ModeFenced, Version: 18, Cache: sqltext.NewCache(1 << 20), Worker: "w"}
	config.Candidacy = protocol.Candidacy{Resource: "r", Incarnation: func() string { return "i" }, Status: func() *fencing.Status { return status }}
	config.Announced, config.Registered = 9, true
	c := core{t, protocol.New(config)}
	c.s.AppendGreeting(nil)
	for _, confirmed := range []bool{true, false} {
		c.client(Q("select 1"))
		status = &fencing.Status{Epoch: 9, Lapsed: !confirmed}
		if confirmed {
			status = leader(9)
		}
		out := string(c.server(wiretest.Msg('I'), ready('I')))
		if reports := strings.Contains(out, "fencepost.role\x00follower"); reports == confirmed {
			t.Errorf("confirmed %t: the client gets %q", confirmed, out)
		}
	}
	status = leader(9)
	if !c.s.Is(protocol.Portable) {
		t.Fatal("the session is not portable")
	}
	carried := c.s.Carried()
	config.Carried = &carried
	c = core{t, protocol.New(config)}
	c.client(Q("select 1"))
	if out := string(c.server(wiretest.Msg('I'), ready('I'))); !strings.Contains(out, "fencepost.role\x00leader") || !strings.Contains(out, "fencepost.epoch\x009") {
		t.Errorf("the client gets %q", out)
	}
	c.client(Q("select 1"))
	if out := string(c.server(wiretest.Msg('I'), ready('I'))); strings.Contains(out, "fencepost.") {
		t.Errorf("the client gets again: %q", out)
	}
}
