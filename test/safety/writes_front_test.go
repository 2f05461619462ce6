package safety

import (
	"bytes"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// inFront says what the machine puts in front of a Query in an idle session, or in a
// block that has not been checked yet: of a worker that leads, or does not.
func inFront(t *testing.T, sql string, leads, inBlock bool) string {
	t.Helper()
	st := &fencing.Status{Role: fencing.Follower, Holder: fencing.Record{Epoch: 5, Worker: "other"}}
	if leads {
		st = &fencing.Status{Role: fencing.Leader, Epoch: 5, Holder: fencing.Record{Epoch: 5, Worker: "w"}}
	}
	m := protocol.New(protocol.Config{
		Mode: protocol.ModeFenced, Version: 18, Status: func() *fencing.Status { return st }, Cache: sqltext.NewCache(1 << 20),
		Fence: 7, Resource: "r", Worker: "w", Incarnation: "i",
	})
	m.AppendPrepare(nil)
	_ = m.Prepared(nil)
	m.AppendGreeting(nil, st, st.Epoch)
	var plan gate.Plan
	send := func(sql string) ([]byte, protocol.Need) {
		in := wiretest.Query(sql)
		plan.Reset(in)
		n, need, err := m.FromClient(in, &plan)
		if err != nil || need.Kind == protocol.NeedNothing && n != len(in) {
			t.Fatalf("%s: took %d of %d bytes: %v", sql, n, len(in), err)
		}
		out, _ := plan.Bytes(nil)
		return out, need
	}
	if inBlock {
		send("begin")
		answer := append(wiretest.Msg('C', []byte("BEGIN\x00")), wiretest.Msg('Z', []byte("T"))...)
		var replies gate.Segments
		replies.Reset(answer)
		if n, _, err := m.FromServer(answer, &replies); n != len(answer) || err != nil {
			t.Fatalf("took %d of %d bytes of the server: %v", n, len(answer), err)
		}
	}
	out, need := send(sql)
	for what, text := range map[string]string{
		"refusal": "refused by Fencepost", "value": "SET fencepost.", "check": "fencepost_check_", "read only": "fencepost_read_",
	} {
		if bytes.Contains(out, []byte(text)) {
			return what
		}
	}
	if need.Kind == protocol.NeedRegister {
		return "registry"
	}
	return "nothing"
}
