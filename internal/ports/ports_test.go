package ports

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestAServerListensOnItsPortAgain also checks what clients get while it does not listen.
func TestAServerListensOnItsPortAgain(t *testing.T) {
	p := For(t)
	for range 2 {
		if _, err := net.Dial("tcp", p.Address()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection while nobody listens: %v, want it refused", err)
		}
		l, err := net.Listen("tcp", p.Address())
		if err != nil {
			t.Fatalf("listen on the reserved port: %v", err)
		}
		in, err := net.Dial("tcp", p.Address())
		if err != nil {
			t.Fatalf("connect to the server on the reserved port: %v", err)
		}
		in.Close()
		l.Close()
	}
}

// TestAReservedPortIsGivenToNoOne leaves sockets only the reserved port to choose from.
func TestAReservedPortIsGivenToNoOne(t *testing.T) {
	p := For(t)
	only := func(_, _ string, c syscall.RawConn) error {
		var err error
		if callErr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, localPortRange, p.Number|p.Number<<16)
		}); callErr != nil {
			return callErr
		}
		return err
	}
	listen := net.ListenConfig{Control: only}
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if errors.Is(err, syscall.ENOPROTOOPT) {
		t.Skip("this kernel cannot restrict the ports of a socket: Linux 6.3 and later can")
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a listener on any port got %v, error %v; want none", l, err)
	}
	elsewhere, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	dial := net.Dialer{Control: only}
	if c, err := dial.Dial("tcp", elsewhere.Addr().String()); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a connection from any port got %v, error %v; want none", c, err)
	}

	p.Release()
	if l, err = listen.Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatalf("a listener on any port, with the port released: %v", err)
	}
	defer l.Close()
	if got := l.Addr().(*net.TCPAddr).Port; got != p.Number {
		t.Errorf("the listener got port %d; want %d, or this test shows nothing", got, p.Number)
	}
}

// localPortRange is IP_LOCAL_PORT_RANGE of Linux 6.3 and later: the ports from which the
// kernel may choose for a socket, the lowest in the lower half.
const localPortRange = 51
