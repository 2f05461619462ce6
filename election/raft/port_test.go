package raft

import (
	"net"
	"testing"
)

// Connections that say nothing, which need no certificate, neither use up the descriptors of the proxy nor
// keep others out.
func TestConnectionsThatSayNothingAreBounded(t *testing.T) {
	t.Parallel()
	c := newMembers(t, "one")
	c.begin()
	p := c.nodes["one"].port
	open := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.conns)
	}
	before := open()
	const many = 2 * mostGreetings
	for i := range many {
		conn, err := net.Dial("tcp", c.base.Peers["one"])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%64 == 0 {
			// Those that were closed are forgotten a little later.
			eventually(t, "no more are open than may be", handshakeTimeout/2, func() bool { return open() <= before+mostGreetings*3/2 })
		}
	}
	other, err := newCluster(c.base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.close() })
	if err := other.ask(within(t, patience), "one", request{op: opSelf}, anywhere, nil); err != nil {
		t.Errorf("a proxy gets %v", err)
	}
}
