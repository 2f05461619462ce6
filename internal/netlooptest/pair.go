// Package netlooptest opens connections of the event loop for tests.
package netlooptest

import (
	"testing"

	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy/netloop"
)

// Pair returns the two ends of one TCP connection, adopted by loops that end with the
// test.
func Pair(t testing.TB) (a, b netloop.Conn) {
	t.Helper()
	loops, err := netloop.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loops.Close)
	x, y := wiretest.Pair(t)
	if a, err = loops.Pick().Adopt(x); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	if b, err = loops.Pick().Adopt(y); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return a, b
}
