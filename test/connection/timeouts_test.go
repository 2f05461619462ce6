package connection

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/wiretest"
)

// withTimeouts calls try with one startup timeout after the other, until it returns true. It
// returns false if something that had to come within the timeout did not, because the machine is
// too busy for so short a timeout.
func withTimeouts(t *testing.T, try func(timeout time.Duration) (inTime bool)) {
	t.Helper()
	for timeout := 2 * time.Second; !try(timeout); timeout *= 4 {
		if timeout > fixture.Patience/2 {
			t.Fatalf("what does not depend on a timeout of %s did not come within it", timeout)
		}
		t.Logf("the machine is too busy for a timeout of %s", timeout)
	}
}

// begins reads the answer to a startup packet, and reports whether the session has begun.
func begins(c *wiretest.Conn) bool {
	for {
		m, err := c.Next()
		if err != nil || m.Type == 'E' {
			return false
		}
		if m.Type == 'Z' {
			return true
		}
	}
}

// answer reads one byte. It reports false if the connection has ended.
func answer(c *wiretest.Conn) (b byte, ok bool) {
	_ = c.SetReadDeadline(time.Now().Add(fixture.Patience))
	var one [1]byte
	n, _ := c.Read(one[:])
	return one[0], n == 1
}
