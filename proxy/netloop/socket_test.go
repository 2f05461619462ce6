package netloop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"golang.org/x/sys/unix"
)

// socketPair returns two ends of one TCP connection, both told by one loop.
func socketPair(t testing.TB) (a, b *Conn) {
	t.Helper()
	l, err := newLoop()
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
	if a, err = newSocket(l, out); err != nil {
		t.Fatal(err)
	}
	if b, err = newSocket(l, in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = a.Close(), b.Close() // a test may have closed them
		l.close()
	})
	return a, b
}

func TestSocketIsAConn(t *testing.T) {
	t.Parallel()
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := socketPair(t)
		return a, b, func() { _, _ = a.Close(), b.Close() }, nil
	})
}

// collector serves a socket by collecting what it reads.
type collector struct {
	s    *Conn
	buf  [64]byte
	got  bytes.Buffer
	err  error
	stop string // leaves when this was read
	told chan string
}

func (c *collector) serve() bool {
	n, err := c.s.TryRead(c.buf[:])
	if err == ErrAgain {
		return true
	}
	if c.err = err; err != nil {
		return false
	}
	c.got.Write(c.buf[:n])
	if c.told != nil {
		c.told <- c.got.String()
	}
	return n < len(c.buf) && !(c.stop != "" && bytes.HasSuffix(c.got.Bytes(), []byte(c.stop)))
}

func attended(s *Conn, c *collector) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.OnReadable(c.serve) }()
	return done
}

func within(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("attend did not return")
		return nil
	}
}

func send(t *testing.T, s *Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(s, text); err != nil {
		t.Fatal(err)
	}
}

func TestLoopServesWhatComes(t *testing.T) {
	t.Parallel()
	a, b := socketPair(t)
	c := &collector{s: b, told: make(chan string, 8), stop: "!"}
	send(t, a, "before ")
	done := attended(b, c)
	if got := <-c.told; got != "before " {
		t.Fatalf("served %q", got)
	}
	for _, text := range []string{"one ", "two ", "three!"} {
		send(t, a, text)
		if got := <-c.told; !bytes.HasSuffix([]byte(got), []byte(text)) {
			t.Fatalf("served %q behind %q", got, text)
		}
	}
	if err := within(t, done); err != nil {
		t.Fatal(err)
	}
	if got, want := c.got.String(), "before one two three!"; got != want {
		t.Errorf("served %q, want %q", got, want)
	}
}

// The bytes and the end of input are told by one edge, in either order with
// attend.
func TestLoopServesTheEndBehindBytes(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		for range 50 {
			a, b := socketPair(t)
			c := &collector{s: b}
			var done <-chan error
			if late {
				done = attended(b, c)
			}
			send(t, a, "last words")
			if err := a.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if !late {
				done = attended(b, c)
			}
			if err := within(t, done); err != nil {
				t.Fatal(err)
			}
			if c.err != io.EOF || c.got.String() != "last words" {
				t.Fatalf("served %q, %v; want the last words and EOF", c.got.String(), c.err)
			}
		}
	}
}

func TestDeadlineEndsAttendAndLosesNothing(t *testing.T) {
	t.Parallel()
	a, b := socketPair(t)
	c := &collector{s: b, stop: "!"}
	done := attended(b, c)
	if err := b.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, done); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("attend: %v, want a deadline", err)
	}
	send(t, a, "while nobody attends")
	if err := within(t, attended(b, c)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("attend: %v, want a deadline still", err)
	}
	if err := b.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	done = attended(b, c)
	send(t, a, "!")
	if err := within(t, done); err != nil {
		t.Fatal(err)
	}
	if got, want := c.got.String(), "while nobody attends!"; got != want {
		t.Errorf("served %q, want %q", got, want)
	}
}

func TestCloseEndsAttend(t *testing.T) {
	t.Parallel()
	_, b := socketPair(t)
	done := attended(b, &collector{s: b})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// Served once more, it reads of a closed socket; or attend sees that first.
	if err := within(t, done); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatalf("attend: %v", err)
	}
	if err := within(t, attended(b, &collector{s: b})); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatalf("attend behind close: %v", err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write behind close: %v", err)
	}
}

// What attend leaves over, Read has: the two may take turns.
func TestAttendAndReadTakeTurns(t *testing.T) {
	t.Parallel()
	a, b := socketPair(t)
	const turns = 2000
	go func() {
		for i := range turns {
			if _, err := a.Write([]byte{byte(i), byte(i), '!'}); err != nil {
				t.Error(err)
			}
		}
		_ = a.CloseWrite()
	}()
	var got bytes.Buffer
	for i := 0; ; i++ {
		if i%2 == 0 {
			c := &collector{s: b, stop: "!"}
			if err := within(t, attended(b, c)); err != nil {
				t.Fatal(err)
			}
			got.Write(c.got.Bytes())
			if c.err == io.EOF {
				break
			}
			continue
		}
		buf := make([]byte, 7)
		n, err := b.Read(buf)
		got.Write(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range turns {
		if want := []byte{byte(i), byte(i), '!'}; !bytes.Equal(got.Next(3), want) {
			t.Fatalf("turn %d is not %q", i, want)
		}
	}
}

// An event that was fetched for a socket must not be taken for the next one's
// with its descriptor; and a wrong word of the peer's end must not stop the loop.
func TestEventsOfAClosedSocketReachNoOther(t *testing.T) {
	t.Parallel()
	a, b := socketPair(t)
	c, d := socketPair(t)
	if a.key == b.key {
		t.Fatal("two sockets of a loop have one key")
	}
	old := a.key
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	key, err := b.loop.add(c.use.fd, c)
	if err != nil {
		t.Fatal(err)
	}
	if key == old {
		t.Error("a closed socket's key is used again")
	}
	b.loop.remove(key)

	d.ready(unix.EPOLLIN | unix.EPOLLRDHUP) // its peer has not ended
	col := &collector{s: d, stop: "!"}
	done := attended(d, col)
	send(t, c, "still here!")
	if err := within(t, done); err != nil || col.got.String() != "still here!" {
		t.Errorf("served %q, %v", col.got.String(), err)
	}
}
