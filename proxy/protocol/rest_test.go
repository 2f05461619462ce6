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

// modelServer answers messages in the order in which Postgres does (PostgresMain in its postgres.c), each with success or with
// an error.
type modelServer struct {
	*rand.Rand
	sent     []byte // types of messages that it has not read
	batch    bool   // it has read extended messages since the last Sync, Query or FunctionCall
	skipping bool
}

// read reads the next message, and returns what it answers.
func (m *modelServer) read() (replies [][]byte) {
	typ := m.sent[0]
	m.sent = m.sent[1:]
	if m.skipping && typ != 'S' {
		return nil
	}
	fails := m.IntN(5) == 0
	switch typ {
	case 'S':
		m.batch, m.skipping = false, false
		return [][]byte{ready('I')}
	case 'Q', 'F':
		m.batch = false
		first := wiretest.Msg('I')
		if typ == 'F' {
			first = wiretest.Msg('V', []byte{0xff, 0xff, 0xff, 0xff})
		}
		if fails {
			first = failure("22012", "x")
		}
		return [][]byte{first, ready('I')}
	case 'H':
		return nil
	}
	m.batch = true
	if fails {
		m.skipping = true
		return [][]byte{failure("22012", "x")}
	}
	return map[byte][][]byte{
		'P': {wiretest.Msg('1')}, 'B': {wiretest.Msg('2')}, 'C': {wiretest.Msg('3')}, 'D': {wiretest.Msg('n')},
		'E': {wiretest.Msg('D', []byte{0, 0}), wiretest.Msg('C', []byte("SELECT 1\x00"))},
	}[typ]
}

// TestARelayKnowsWhenItIsAtRest: whatever is sent and answered in which order, without COPY, the session is at rest if the
// server has read everything and no batch is open, and never before. Some drivers end a batch by a Query in place of a Sync.
func TestARelayKnowsWhenItIsAtRest(t *testing.T) {
	t.Parallel()
	messages := map[byte][]byte{
		'P': Parse("", "select 1"), 'B': Bind("", ""), 'D': Desc('P', ""), 'E': Exec("", 0), 'C': Shut('S', "s"), 'H': Flush(), 'S': Sync(), 'Q': Q("select 1"),
		'F': wiretest.Msg('F', []byte{0, 0, 0, 1, 0, 0, 0, 0, 0, 0}),
	}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		server := &modelServer{Rand: r}
		c := core{t, protocol.New(protocol.Config{Mode: protocol.ModePassing, Version: 18, Cache: sqltext.NewCache(1 << 20)})}
		var history string
		for range 40 {
			if r.IntN(2) == 0 {
				typ := "PBDECHSSQQF"[r.IntN(11)]
				if out, n, _, err := c.client(messages[typ]); err != nil || n == 0 || len(out) == 0 {
					t.Fatalf("seed %d: after %s, %c is not relayed: took %d, %v", seed, history, typ, n, err)
				}
				server.sent = append(server.sent, typ)
				history += string(typ)
			} else if len(server.sent) > 0 {
				replies := server.read()
				c.server(replies...)
				for _, m := range replies {
					history += fmt.Sprintf(" %c<", m[0])
				}
			}
			unread := strings.ReplaceAll(string(server.sent), "H", "") // nothing answers a Flush
			want := unread == "" && !server.batch && !server.skipping
			if got := c.s.Is(protocol.AtRest); got != want {
				t.Fatalf("seed %d: after %s, with %q unread, at rest: %t; want %t", seed, history, server.sent, got, want)
			}
		}
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

// TestARelayThatHasLostCountSkipsNothing: a COPY fails before it reads the Query behind it, which it may have read, and that
// fails too. What is sent before its ReadyForQuery runs, and is looked at.
func TestARelayThatHasLostCountSkipsNothing(t *testing.T) {
	t.Parallel()
	status := leader(9)
	config := protocol.Config{Mode: protocol.ModeFenced, Version: 18, Cache: sqltext.NewCache(1 << 20), Worker: "w"}
	config.Candidacy = protocol.Candidacy{Resource: "r", Incarnation: "i", Status: func() *fencing.Status { return status }}
	config.Announced, config.Registered = 9, true
	c := core{t, protocol.New(config)}
	if out, _, _, err := c.client(Q("select 1")); string(out) != string(Q("select 1")) || err != nil {
		t.Fatalf("the session is not relayed: %q, %v", out, err)
	}
	c.server(wiretest.Msg('I'), ready('I'))
	c.client(Q("copy t from stdin"))
	c.client(Q("do 'slow'"))
	c.client(Parse("", "select 1"))
	c.server(wiretest.Msg('G', []byte{0, 0, 0}), failure("P0001", "of the COPY"), ready('I'), failure("P0001", "of the DO"))
	if out, _, _, err := c.client(Q("begin; prepare transaction 'x'")); len(out) > 0 || err == nil {
		t.Errorf("sent %q, %v", out, err)
	}
}
