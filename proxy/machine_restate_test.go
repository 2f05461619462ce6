package proxy

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

// preparedMachine returns the machine of a follower whose statement s is confirmed.
func preparedMachine(t *testing.T, text string) *machine {
	t.Helper()
	m := fuzzMachine(fencedMode, standings[1])
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
		if _, _, err := m.client(in, p); err != nil {
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
		if n, need, err := m.client(in[:cut], p); n != 0 || need != needMore || err != nil {
			t.Fatalf("%d bytes of the Bind: took %d, need %v, error %v", cut, n, need, err)
		}
	}
	if sent := pumpUp(t, m, in, 1<<20); !bytes.Contains(sent, []byte("begin")) {
		t.Errorf("%q goes to the server, without the text", sent)
	}
}
