package netloop

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// OnReadable calls serve now, and then lets the loop call it whenever the socket
// may have become readable, until it returns false: then attend returns nil.
// Otherwise it returns as Read would, when the deadline passes or the socket is
// closed. serve never blocks, and is not called by two at a time. It reads by
// TryRead once, and stays if that left room in its buffer: what comes later is
// told. Only the end of input may have been told with the bytes before it.
func (s *Conn) OnReadable(serve func() (stay bool)) error {
	s.fastPath.Lock()
	select {
	case <-s.readDeadline.passed():
		s.fastPath.Unlock()
		return s.failed("read", os.ErrDeadlineExceeded)
	default:
	}
	if !s.serves(serve) {
		s.fastPath.Unlock()
		return nil
	}
	s.fastPath.serve = serve
	s.fastPath.Unlock()
	err := error(nil)
	select {
	case <-s.fastPath.left:
		return nil
	case <-s.closed:
		err = net.ErrClosed
	case <-s.readDeadline.passed():
		err = os.ErrDeadlineExceeded
	}
	s.fastPath.Lock()
	defer s.fastPath.Unlock()
	if s.fastPath.serve == nil { // serve ended it meanwhile
		<-s.fastPath.left
		return nil
	}
	s.fastPath.serve = nil
	return s.failed("read", err)
}

// serves calls serve, and once more when the peer has ended: behind its last
// bytes is the end. s.lane is held.
func (s *Conn) serves(serve func() bool) (stay bool) {
	return serve() && (!s.ended.Load() || serve())
}

// ready is told by the loop what may be possible now.
func (s *Conn) ready(events uint32) {
	if events&^uint32(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
		notify(s.writable)
	}
	if events&^uint32(unix.EPOLLOUT) == 0 {
		return
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 && s.ended.CompareAndSwap(false, true) {
		close(s.sentAll)
	}
	s.fastPath.Lock()
	defer s.fastPath.Unlock()
	switch {
	case s.fastPath.serve == nil:
		notify(s.readable)
	case !s.serves(s.fastPath.serve):
		s.fastPath.serve = nil
		s.fastPath.left <- struct{}{}
	}
}

// notify leaves a token for who waits, or will.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
