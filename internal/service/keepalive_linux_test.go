package service

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fencepost/fencepost/internal/config"
)

// TestADeadClientsConnectionEnds checks that the system probes an idle client and
// closes its connection after little more than a minute without a response.
func TestADeadClientsConnectionEnds(t *testing.T) {
	t.Parallel()
	s := &Server{}
	s.settings.Start(config.Config{Listen: config.Addresses{"127.0.0.1:0"}})
	if err := s.listen(); err != nil {
		t.Fatal(err)
	}
	defer s.closeListeners()
	made := s.listeners[0].(*net.TCPListener)
	f, err := made.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	inherited, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	for name, ln := range map[string]net.Listener{"new": made, "inherited": probing{inherited.(*net.TCPListener)}} {
		t.Run(name, func(t *testing.T) { testADeadClient(t, ln) })
	}
}

func testADeadClient(t *testing.T, ln net.Listener) {
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(level, name int) (value int) {
		t.Helper()
		var failed error
		if err := raw.Control(func(fd uintptr) { value, failed = unix.GetsockoptInt(int(fd), level, name) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		return value
	}
	if option(unix.SOL_SOCKET, unix.SO_KEEPALIVE) == 0 {
		t.Error("the system sends no keepalive probes")
	}
	seconds := option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE) + option(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)*option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)
	if seconds != 75 {
		t.Errorf("a dead client's connection ends after %d s, not 75", seconds)
	}
}
