package playground

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo answers each byte on each connection with the same byte, until the test ends.
func echo(t *testing.T) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until the test closes its side
			}()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

func dial(t *testing.T, r *relay) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchange sends a text, and returns the error of reading it back within a time.
func exchange(t *testing.T, c net.Conn, text string, within time.Duration) error {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return receive(t, c, text, within)
}

func receive(t *testing.T, c net.Conn, text string, within time.Duration) error {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	_, err := io.ReadFull(c, got)
	if err == nil && string(got) != text {
		t.Errorf("got %q, want %q", got, text)
	}
	return err
}

const patience = 30 * time.Second

// TestACutRelayHoldsBytesUp: nothing is lost, and nothing arrives before the network is whole again.
func TestACutRelayHoldsBytesUp(t *testing.T) {
	t.Parallel()
	r, err := newRelay(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	c := dial(t, r)
	if err := exchange(t, c, "whole", patience); err != nil {
		t.Fatal(err)
	}
	r.set(true)
	r.set(true)
	if err := exchange(t, c, "cut", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("through a cut relay: %v", err)
	}
	late := dial(t, r) // is accepted, as by a network that loses what follows
	if err := exchange(t, late, "late", 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a new connection through a cut relay: %v", err)
	}
	r.set(false)
	if err := receive(t, c, "cut", patience); err != nil {
		t.Errorf("after the cut: %v", err)
	}
	if err := receive(t, late, "late", patience); err != nil {
		t.Errorf("the new connection after the cut: %v", err)
	}
}

// TestTheEndOfAConnectionIsPassedOn, also if the other side has ended it.
func TestTheEndOfAConnectionIsPassedOn(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r, err := newRelay(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	for _, worker := range []bool{true, false} {
		c := dial(t, r)
		s, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ends, hears := c, s
		if !worker {
			ends, hears = s, c
		}
		if err := ends.Close(); err != nil {
			t.Fatal(err)
		}
		if err := receive(t, hears, "x", patience); !errors.Is(err, io.EOF) {
			t.Errorf("the end was passed on as %v", err)
		}
		_ = hears.Close()
	}
}

// TestAClosedRelayWaitsForNobody, whether it was cut or not.
func TestAClosedRelayWaitsForNobody(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		r, err := newRelay(echo(t))
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, r)
		if err := exchange(t, c, "x", patience); err != nil {
			t.Fatal(err)
		}
		r.set(cut)
		if _, err := io.WriteString(c, "y"); err != nil {
			t.Fatal(err)
		}
		r.close()
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the connection is open after the relay was closed")
		}
	}
}
