package netloop

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// served is who serves a connection.
type served struct {
	mu      sync.Mutex // not held while Serve runs
	reader  Reader     // nil if no one does
	running bool       // a goroutine calls Serve
	again   bool       // it has to call it once more, because something has come meanwhile
	over    error      // it must not, for this reason

	stopped chan struct{} // closed when running ends; nil unless Withdraw waits for that

	peerEnded chan struct{} // closed when the peer has ended; nil until someone asks for it
}

// OnReadable implements Conn. Serve is called by this goroutine first, and then by the loop's.
func (c *epollConn) OnReadable(r Reader) (left bool, err error) {
	s := &c.served
	s.mu.Lock()
	late := c.readDeadline.hasPassed() // what passes later calls end
	if !late {
		s.reader, s.running, s.again, s.over = r, true, false, nil
	}
	s.mu.Unlock()
	if late {
		return false, c.failed("read", os.ErrDeadlineExceeded)
	}
	return c.serve(r)
}

// serve calls Serve until nothing more has come, and reports whether r continues. The caller has set running.
func (c *epollConn) serve(r Reader) (stays bool, err error) {
	s := &c.served
	for {
		// Once more when the peer has ended: after its last bytes comes the end.
		stays = r.Serve() && (!c.ended.Load() || r.Serve())
		s.mu.Lock()
		again := s.again
		s.again = false
		switch {
		case !stays:
			s.reader = nil
		case s.over != nil:
			stays, err, s.reader = false, c.failed("read", s.over), nil
		case again:
			s.mu.Unlock()
			continue
		}
		s.running = false
		if s.stopped != nil {
			close(s.stopped)
			s.stopped = nil
		}
		s.mu.Unlock()
		return stays, err
	}
}

// Withdraw implements Detachable.
func (c *epollConn) Withdraw() bool {
	s := &c.served
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.running {
		stopped := make(chan struct{})
		s.stopped = stopped
		s.mu.Unlock()
		<-stopped
		s.mu.Lock()
	}
	left := s.reader != nil
	s.reader = nil
	return left
}

// end says that no one is served any more, for the given reason.
func (c *epollConn) end(reason error) {
	s := &c.served
	s.mu.Lock()
	r := s.reader
	if s.running {
		r, s.over = nil, reason
	} else {
		s.reader = nil
	}
	s.mu.Unlock()
	if r != nil {
		r.Resume(c.failed("read", reason))
	}
}

// ready is called by the loop with what may be possible now.
func (c *epollConn) ready(events uint32) {
	if events&^uint32(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
		c.writable.give()
	}
	if events&^uint32(unix.EPOLLOUT) == 0 {
		return
	}
	s := &c.served
	s.mu.Lock()
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 && c.ended.CompareAndSwap(false, true) && s.peerEnded != nil {
		close(s.peerEnded)
	}
	r, running := s.reader, s.running
	s.again = running
	s.running = r != nil
	s.mu.Unlock()
	switch {
	case r == nil:
		c.readable.give()
	case !running:
		if stays, err := c.serve(r); !stays {
			r.Resume(err)
		}
	}
}
