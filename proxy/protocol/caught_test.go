package protocol

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/gate"
)

func TestPanicEndsItsOwnSession(t *testing.T) {
	t.Parallel()
	m := leading(15)
	m.config.Status = func() *fencing.Status { panic("a bug") }
	var up gate.Plan
	in := wiretest.Query("insert into t values (1)")
	up.Reset(in)
	if _, _, err := m.FromClient(in, &up); !errors.Is(err, ErrBug) {
		t.Errorf("the client's side: %v, want errBug", err)
	}
	m = leading(15)
	m.down.reported = nil
	m.pendingReplies.push(query, fromClient)
	m.config.Status = func() *fencing.Status { panic("a bug") }
	in = wiretest.Msg('Z', []byte{'I'})
	var down gate.Segments
	down.Reset(in)
	if _, _, err := m.FromServer(in, &down); !errors.Is(err, ErrBug) {
		t.Errorf("the server's side: %v, want errBug", err)
	}
}
