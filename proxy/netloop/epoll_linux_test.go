package netloop

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// implementations are the ways to open a loop.
var implementations = map[string]func() (Loop, error){
	"epoll": func() (Loop, error) { return newEpollLoop() },
	"plain": func() (Loop, error) { return plainLoop{}, nil },
}

// An event that was fetched for a socket must not be taken for the next one's
// with its descriptor; and a wrong word of the peer's end must not stop the loop.
func TestEventsOfAClosedSocketReachNoOther(t *testing.T) {
	t.Parallel()
	ends := make([]*epollConn, 4)
	for i := range 2 {
		x, y := pair(t, implementations["epoll"])
		ends[2*i], ends[2*i+1] = x.(*epollConn), y.(*epollConn)
	}
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
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
	b.loop.remove(c.use.fd, key)

	d.ready(unix.EPOLLIN | unix.EPOLLRDHUP) // its peer has not ended
	col := &collector{s: d, stop: "!"}
	done := attend(d, col)
	send(t, c, "still here!")
	if err := within(t, done); err != nil || col.got.String() != "still here!" {
		t.Errorf("served %q, %v", col.got.String(), err)
	}
}

// TestADetachedConnection: after Withdraw, no Reader is called, and after Detach, nothing of the connection is read,
// and its end is not said to its peer while someone has the descriptor. After Attach it goes on with what has arrived
// meanwhile.
func TestADetachedConnection(t *testing.T) {
	t.Parallel()
	x, y := pair(t, implementations["epoll"])
	a := x.(*epollConn)
	if a.Withdraw() {
		t.Error("a connection that serves no one was withdrawn from someone")
	}
	first := &collector{s: a, received: make(chan string, 8)}
	done := attend(a, first)
	send(t, y, "one ")
	<-first.received
	if !a.Withdraw() {
		t.Error("the loop does not continue")
	}
	fd, err := a.Detach()
	if err != nil {
		t.Fatal(err)
	}
	send(t, y, "two!")
	if err := a.Attach(); err != nil {
		t.Fatal(err)
	}
	second := &collector{s: a, stop: "!"}
	if err := within(t, attend(a, second)); err != nil || second.got.String() != "two!" {
		t.Errorf("after it was attached again: %q, %v", second.got.String(), err)
	}
	select {
	case err := <-done:
		t.Errorf("the reader from which it was withdrawn was resumed: %v", err)
	default:
	}
	if first.got.String() != "one " {
		t.Errorf("the reader from which it was withdrawn got %q", first.got.String())
	}
	closing, err := a.Detach()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(closing)
	_ = unix.Close(fd)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Detach(); err == nil {
		t.Error("a closed connection was detached")
	}
	if err := a.Attach(); err == nil {
		t.Error("a closed connection was attached")
	}
	send(t, y, "three")
	buf := make([]byte, 8)
	if n, err := unix.Read(closing, buf); err != nil || string(buf[:n]) != "three" {
		t.Errorf("who has the descriptor reads %q, %v", buf[:n], err)
	}
}

// TestWithdrawWaits for a Serve that is under way, after which the Reader either is called no more, or has been told to
// resume.
func TestWithdrawWaits(t *testing.T) {
	t.Parallel()
	for range 200 {
		x, y := pair(t, implementations["epoll"])
		a := x.(*epollConn)
		c := &collector{s: a, stop: "!", received: make(chan string, 8)}
		done := attend(a, c)
		send(t, y, "a ")
		<-c.received
		go func() { _, _ = y.Write([]byte("some")); _, _ = y.Write([]byte("thing!")) }()
		if !a.Withdraw() {
			if err := within(t, done); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got := c.got.String()[len("a "):] // which the race detector sees if someone serves
		rest := make([]byte, len("something!")-len(got))
		if err := a.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(a, rest); err != nil || got+string(rest) != "something!" {
			t.Errorf("got %q and %q, %v", got, rest, err)
		}
	}
}
