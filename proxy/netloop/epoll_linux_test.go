package netloop

import (
	"testing"

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
	b.loop.remove(key)

	d.ready(unix.EPOLLIN | unix.EPOLLRDHUP) // its peer has not ended
	col := &collector{s: d, stop: "!"}
	done := attend(d, col)
	send(t, c, "still here!")
	if err := within(t, done); err != nil || col.got.String() != "still here!" {
		t.Errorf("served %q, %v", col.got.String(), err)
	}
}
