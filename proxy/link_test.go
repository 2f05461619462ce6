package proxy

import (
	"net"
	"testing"

	"github.com/fencepost/fencepost/proxy/netloop"
)

// linkPair returns two ends of one TCP connection.
func linkPair(t *testing.T) (a, b link) {
	t.Helper()
	loops, err := netloop.Start()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	out, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = loops.Pick().Adopt(out); err != nil {
		t.Fatal(err)
	}
	if b, err = loops.Pick().Adopt(in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = a.Close(), b.Close() // a test may have closed them
		loops.Close()
	})
	return a, b
}
