//go:build unix

package netloop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// pair returns two ends of one TCP connection, both of one loop.
func pair(t testing.TB, open func() (Loop, error)) (a, b Conn) {
	t.Helper()
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	out, in := wiretest.Pair(t)
	if a, err = l.Adopt(out); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Adopt(in); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = a.Close(), b.Close() // a test may have closed them
		l.close()
	})
	return a, b
}

// TestContract: what Conn promises, of each implementation that can be had here.
func TestContract(t *testing.T) {
	t.Parallel()
	for name, open := range implementations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for what, test := range map[string]func(*testing.T, func() (Loop, error)){
				"is a net.Conn":                     testIsAConn,
				"serves what comes":                 testServesWhatComes,
				"serves the end after bytes":        testServesTheEndAfterBytes,
				"a deadline loses nothing":          testDeadlineLosesNothing,
				"a close ends waiting":              testCloseEndsWaiting,
				"callback and Read take turns":      testTurns,
				"unread is exact":                   testUnreadIsExact,
				"the end is reported before a read": testPeerEnded,
				"a full peer takes no more":         testFullPeer,
				"adopts streams only":               testAdopt,
				"closes in any state":               testCloseInAnyState,
			} {
				t.Run(strings.ReplaceAll(what, " ", "_"), func(t *testing.T) {
					t.Parallel()
					test(t, open)
				})
			}
		})
	}
}

func testIsAConn(t *testing.T, open func() (Loop, error)) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		a, b := pair(t, open)
		return a, b, func() { _, _ = a.Close(), b.Close() }, nil
	})
}

// collector serves a socket by collecting what it reads.
type collector struct {
	s        Conn
	buf      [64]byte
	got      bytes.Buffer
	err      error
	stop     string // leaves when this was read
	received chan string
	over     chan error // what attend returns
}

func (c *collector) Resume(err error) { c.over <- err }

func (c *collector) Serve() bool {
	n, err := c.s.TryRead(c.buf[:])
	if err == ErrAgain {
		return true
	}
	if c.err = err; err != nil {
		return false
	}
	c.got.Write(c.buf[:n])
	if c.received != nil {
		c.received <- c.got.String()
	}
	return n < len(c.buf) && !(c.stop != "" && bytes.HasSuffix(c.got.Bytes(), []byte(c.stop)))
}

func attend(s Conn, c *collector) <-chan error {
	c.over = make(chan error, 2) // with room for one too many
	go func() {
		if left, err := s.OnReadable(c); !left {
			c.over <- err
		}
	}()
	return c.over
}

func within(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it did not return")
		return nil
	}
}

func send(t *testing.T, s Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(s, text); err != nil {
		t.Fatal(err)
	}
}

func testServesWhatComes(t *testing.T, open func() (Loop, error)) {
	a, b := pair(t, open)
	c := &collector{s: b, received: make(chan string, 8), stop: "!"}
	send(t, a, "before ")
	done := attend(b, c)
	if got := <-c.received; got != "before " {
		t.Fatalf("served %q", got)
	}
	for _, text := range []string{"one ", "two ", "three!"} {
		send(t, a, text)
		if got := <-c.received; !bytes.HasSuffix([]byte(got), []byte(text)) {
			t.Fatalf("served %q after %q", got, text)
		}
	}
	if err := within(t, done); err != nil {
		t.Fatal(err)
	}
	if got, want := c.got.String(), "before one two three!"; got != want {
		t.Errorf("served %q, want %q", got, want)
	}
}

// The bytes and the end of input are reported by one edge, in either order with
// OnReadable.
func testServesTheEndAfterBytes(t *testing.T, open func() (Loop, error)) {
	for _, late := range []bool{false, true} {
		for range 50 {
			a, b := pair(t, open)
			c := &collector{s: b}
			var done <-chan error
			if late {
				done = attend(b, c)
			}
			send(t, a, "last words")
			if err := a.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if !late {
				done = attend(b, c)
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

func testDeadlineLosesNothing(t *testing.T, open func() (Loop, error)) {
	a, b := pair(t, open)
	c := &collector{s: b, stop: "!"}
	done := attend(b, c)
	if err := b.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := within(t, done); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("OnReadable: %v, want a deadline", err)
	}
	send(t, a, "while nobody waits")
	if err := within(t, attend(b, c)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("OnReadable: %v, want a deadline still", err)
	}
	if err := b.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	done = attend(b, c)
	send(t, a, "!")
	if err := within(t, done); err != nil {
		t.Fatal(err)
	}
	if got, want := c.got.String(), "while nobody waits!"; got != want {
		t.Errorf("served %q, want %q", got, want)
	}
}

func testCloseEndsWaiting(t *testing.T, open func() (Loop, error)) {
	_, b := pair(t, open)
	done := attend(b, &collector{s: b})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	// Served once more, it reads of a closed socket; or OnReadable sees that first.
	if err := within(t, done); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatalf("OnReadable: %v", err)
	}
	if err := within(t, attend(b, &collector{s: b})); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatalf("OnReadable after Close: %v", err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
}

// What the callback leaves over, Read has: the two may take turns.
func testTurns(t *testing.T, open func() (Loop, error)) {
	a, b := pair(t, open)
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
			if err := within(t, attend(b, c)); err != nil {
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

// testUnreadIsExact: what has arrived is counted whether the callback was called for it
// or not, and asking loses nothing.
func testUnreadIsExact(t *testing.T, open func() (Loop, error)) {
	a, b := pair(t, open)
	for round := range 300 {
		text := strings.Repeat("x", 1+round*37%9000)
		send(t, a, text)
		for end := time.Now().Add(time.Minute); b.Unread() < len(text) && time.Now().Before(end); { // the kernel may deliver it later
			time.Sleep(time.Millisecond)
		}
		if got := b.Unread(); got != len(text) {
			t.Fatalf("round %d: %d bytes unread, want %d", round, got, len(text))
		}
		half := make([]byte, len(text)/2)
		if _, err := io.ReadFull(b, half); err != nil {
			t.Fatal(err)
		}
		if got := b.Unread(); got != len(text)-len(half) {
			t.Fatalf("round %d: %d bytes unread, want the other %d", round, got, len(text)-len(half))
		}
		if _, err := io.ReadFull(b, make([]byte, len(text)-len(half))); err != nil {
			t.Fatal(err)
		}
		if got := b.Unread(); got != 0 {
			t.Fatalf("round %d: %d bytes unread, want none", round, got)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Unread() == 0 {
		t.Error("a closed connection knows that nothing is pending")
	}
}

func testPeerEnded(t *testing.T, open func() (Loop, error)) {
	for _, text := range []string{"", "unread"} {
		a, b := pair(t, open)
		send(t, a, text)
		select {
		case <-b.PeerEnded():
			t.Fatal("the end is reported too early")
		case <-time.After(20 * time.Millisecond):
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-b.PeerEnded():
		case <-time.After(time.Minute):
			t.Fatalf("after %q: the end is not reported", text)
		}
		if got, err := io.ReadAll(b); err != nil || string(got) != text {
			t.Errorf("read %q, %v; want %q", got, err, text)
		}
		send(t, b, "the other direction goes on")
	}
}

// testFullPeer: writes are counted while they are under way, and none blocks that
// must not.
func testFullPeer(t *testing.T, open func() (Loop, error)) {
	a, b := pair(t, open)
	junk := make([]byte, 1<<20)
	total := uint64(0)
	for {
		n, err := a.TryWrite(junk)
		total += uint64(n)
		if err == ErrAgain {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if a.Written() != total || total == 0 {
		t.Fatalf("%d bytes written, TryWrite took %d", a.Written(), total)
	}
	written := make(chan error, 1)
	const more = 32 << 20
	go func() {
		_, err := a.Write(make([]byte, more))
		written <- err
	}()
	if _, err := io.CopyN(io.Discard, b, int64(total)+more/2); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); a.Written() <= total; {
		if time.Now().After(end) {
			t.Fatal("a Write that is under way is not counted")
		}
	}
	select {
	case err := <-written:
		t.Fatalf("a Write of more than there is room for has ended: %v", err)
	default:
	}
	if _, err := io.CopyN(io.Discard, b, more/2); err != nil {
		t.Fatal(err)
	}
	if err := within(t, written); err != nil || a.Written() != total+more {
		t.Errorf("%d bytes written of %d, %v", a.Written(), total+more, err)
	}
}

func testAdopt(t *testing.T, open func() (Loop, error)) {
	a, _ := pair(t, open)
	pipe, other := net.Pipe()
	if _, err := a.Loop().Adopt(pipe); err == nil {
		t.Error("a pipe was adopted")
	}
	if err := pipe.Close(); err != nil {
		t.Error(err)
	}
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("what could not be adopted cannot be closed: %v", err)
	}
}

// testCloseInAnyState: Close ends a Read and a Write that wait, and may be called
// twice.
func testCloseInAnyState(t *testing.T, open func() (Loop, error)) {
	a, b := pair(t, open)
	read, written := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := a.Read(make([]byte, 1))
		read <- err
	}()
	go func() {
		_, err := a.Write(make([]byte, 64<<20))
		written <- err
	}()
	for a.Written() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for name, done := range map[string]chan error{"Read": read, "Write": written} {
		if err := within(t, done); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v, want that it is closed", name, err)
		}
	}
	for name, fails := range map[string]func() error{
		"Close":       a.Close,
		"CloseWrite":  a.CloseWrite,
		"SetDeadline": func() error { return a.SetDeadline(time.Time{}) },
		"TryRead":     func() error { _, err := a.TryRead(make([]byte, 1)); return err },
		"TryWrite":    func() error { _, err := a.TryWrite(make([]byte, 1)); return err },
	} {
		if err := fails(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
	select { // what it has not read makes that a reset
	case <-b.PeerEnded():
	case <-time.After(10 * time.Second):
		if _, err := io.Copy(io.Discard, b); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Error(err)
		}
	}
}
