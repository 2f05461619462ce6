package proxy

import (
	"errors"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/wiretest"
)

func TestPanicEndsItsOwnSession(t *testing.T) {
	t.Parallel()
	m := leading(15)
	m.standing = func() *fencing.Standing { panic("a bug") }
	var p plan
	in := wiretest.Query("insert into t values (1)")
	p.reset(in)
	if _, _, err := m.client(in, &p); !errors.Is(err, errBug) {
		t.Errorf("the client's side: %v, want errBug", err)
	}
	m = leading(15)
	m.reported = nil
	m.owed.push(query, false)
	m.standing = func() *fencing.Standing { panic("a bug") }
	in = wiretest.Msg('Z', []byte{'I'})
	p.reset(in)
	if _, err := m.server(in, &p); !errors.Is(err, errBug) {
		t.Errorf("the server's side: %v, want errBug", err)
	}
}
