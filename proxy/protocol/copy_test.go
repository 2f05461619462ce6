package protocol

import (
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

// TestMessagesThatHaveNoPlaceInACopyAreNotWaitedFor: the server ends the connection over
// them, so nothing waits for their replies without end.
func TestMessagesThatHaveNoPlaceInACopyAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	m := leading(15)
	pumpUp(t, m, wiretest.Query("copy t from stdin"), 1<<20)
	pumpDown(t, m, append(wiretest.Msg('C', []byte("SELECT 1\x00")), wiretest.Msg('G', []byte{0, 0, 0})...), 1<<20)
	in := append(wiretest.Parse("s", "insert into t values (1)"), wiretest.Query("vacuum t")...)
	var p gate.Plan
	for range 10 {
		p.Reset(in)
		n, need, err := m.FromClient(in, &p)
		if err != nil {
			t.Fatal(err)
		}
		in = in[n:]
		switch need {
		case NeedNothing:
			return
		case NeedRegister:
			m.Registered(nil)
		case NeedRoom:
			if m.HasRoom() {
				t.Fatal("it needs room, and has it")
			}
			return
		default:
			t.Fatalf("need %d", need)
		}
	}
	t.Error("it does not end")
}
