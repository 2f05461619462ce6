package protocol

import (
	"bytes"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// TestErrorAtASyncOfOurs: a timeout may come to the server between messages of
// ours, and is then raised at the Sync behind them. It is the answer to nothing
// of the client's.
func TestErrorAtASyncOfOurs(t *testing.T) {
	t.Parallel()
	m := fuzzMachine(ModeFenced, standings[0])
	sent := pumpUp(t, m, wiretest.Query("insert into t values (1)"), 1<<20)
	timeout := wiretest.Msg('E', []byte("SERROR\x00VERROR\x00C57014\x00Mcanceling statement due to statement timeout\x00\x00"))
	ready := wiretest.Msg('Z', []byte("I"))
	var server []byte
	syncs := 0
	for len(sent) > 0 {
		f, ok, err := wire.PeekClientFrame(sent)
		if err != nil || !ok {
			t.Fatalf("%q is no message: %v", sent, err)
		}
		switch f.Type {
		case 'P':
			server = append(server, wiretest.Msg('1', nil)...)
		case 'C':
			server = append(server, wiretest.Msg('3', nil)...)
		case 'S':
			syncs++
			server = append(append(server, timeout...), ready...)
		case 'Q':
			server = append(append(server, timeout...), ready...)
		default:
			t.Fatalf("a message %q is sent", f.Type)
		}
		sent = sent[f.Size:]
	}
	if syncs == 0 {
		t.Fatal("nothing is prepared in a batch of its own")
	}
	got, taken := pumpDown(t, m, server, 1<<20)
	if n := bytes.Count(got, []byte("57014")); n != 1 || taken != len(server) || bytes.Count(got, ready) != 1 {
		t.Errorf("the client gets %q of %q", got, server)
	}
}

// TestNothingFollowsAnUnknownType: the server ends the connection over the type alone.
// Whatever followed it would be left unread there, and over TCP the end of the
// connection would then discard what the server has said and not yet delivered.
func TestNothingFollowsAnUnknownType(t *testing.T) {
	t.Parallel()
	for name, copying := range map[string]bool{"at rest": false, "in a COPY": true} {
		m := fuzzMachine(ModeFenced, standings[0])
		if copying {
			m.copy.begin(false)
		}
		in := append(wiretest.Msg('p', []byte("x\x00")), bytes.Repeat(wiretest.Query("select 2"), 100)...)
		if got := pumpUp(t, m, in, 1<<20); string(got) != "p" {
			t.Errorf("%s: %.200q goes to the server; want %q", name, got, "p")
		}
	}
}
