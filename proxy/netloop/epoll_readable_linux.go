package netloop

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// OnReadable implements Conn. serve is called by this goroutine once, and then by
// the loop's.
func (c *epollConn) OnReadable(serve func() (stay bool)) error {
	c.fastPath.Lock()
	if c.readDeadline.hasPassed() {
		c.fastPath.Unlock()
		return c.failed("read", os.ErrDeadlineExceeded)
	}
	if !c.serves(serve) {
		c.fastPath.Unlock()
		return nil
	}
	c.fastPath.serve = serve
	c.fastPath.Unlock()
	err := error(nil)
	select {
	case <-c.fastPath.left:
		return nil
	case <-c.closed:
		err = net.ErrClosed
	case <-c.readDeadline.passed():
		err = os.ErrDeadlineExceeded
	}
	c.fastPath.Lock()
	defer c.fastPath.Unlock()
	if c.fastPath.serve == nil { // serve ended it meanwhile
		<-c.fastPath.left
		return nil
	}
	c.fastPath.serve = nil
	return c.failed("read", err)
}

// serves calls serve, and once more when the peer has ended: after its last bytes
// comes the end. c.fastPath is held.
func (c *epollConn) serves(serve func() bool) (stay bool) {
	return serve() && (!c.ended.Load() || serve())
}

// ready is called by the loop with what may be possible now.
func (c *epollConn) ready(events uint32) {
	if events&^uint32(unix.EPOLLIN|unix.EPOLLRDHUP) != 0 {
		notify(c.writable)
	}
	if events&^uint32(unix.EPOLLOUT) == 0 {
		return
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0 && c.ended.CompareAndSwap(false, true) {
		close(c.sentAll)
	}
	c.fastPath.Lock()
	defer c.fastPath.Unlock()
	switch {
	case c.fastPath.serve == nil:
		notify(c.readable)
	case !c.serves(c.fastPath.serve):
		c.fastPath.serve = nil
		c.fastPath.left <- struct{}{}
	}
}
