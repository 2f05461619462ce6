//go:build unix

package netloop

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// plainLoop is a Loop for systems without epoll: each connection has a goroutine
// of its own, and there is nothing to end.
type plainLoop struct{}

// Adopt implements Loop.
func (l plainLoop) Adopt(conn net.Conn) (Conn, error) {
	s, err := streamOf(conn)
	if err != nil {
		return nil, err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("take connection over: %w", err)
	}
	c := &plainConn{
		stream: s, raw: raw, drained: make(chan struct{}, 1),
		closed: make(chan struct{}), ended: make(chan struct{}), done: make(chan struct{}),
	}
	go c.readAhead()
	return c, nil
}

func (plainLoop) close() {}

// aheadSize is how much of a peer is read before it is asked for, in bytes.
const aheadSize = 16 << 10

// writeSize is how much of a Write is counted as written at once, in bytes.
const writeSize = 16 << 10

// plainConn is a Conn above a net.Conn. A goroutine waits in the runtime's poller
// and reads ahead, so that the end of input is noticed while no one reads;
// readers take what it has read. Close ends it and waits for it.
type plainConn struct {
	stream // for writing; its reading side has no deadline
	raw    syscall.RawConn

	reading, writing sync.Mutex // one Read, one Write at a time
	readDeadline     deadline
	filled           signal        // there is something to read, or an end to waiting
	drained          chan struct{} // a token: there is room to read ahead
	closed           chan struct{}
	ended            chan struct{} // closed at the end of input
	done             chan struct{} // closed when the goroutine has ended
	wrote, got       atomic.Uint64 // bytes

	mu     sync.Mutex // not held while blocking
	buf    [aheadSize]byte
	ahead  []byte // of buf: what was read and not asked for
	err    error  // what comes after ahead
	isOver bool   // Close was called
}

// readAhead is the goroutine of a connection.
func (c *plainConn) readAhead() {
	defer close(c.done)
	for {
		err := c.raw.Read(func(fd uintptr) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.fillLocked(int(fd))
		})
		if err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.isOver && c.err == nil {
				c.endLocked(err)
			}
			return
		}
		select {
		case <-c.drained:
		case <-c.closed:
			return
		case <-c.ended:
			return
		}
	}
}

// fillLocked reads all that there is room for. It reports whether there is nothing
// to be waited for: the buffer is full, or the input has ended. c.mu is held, so
// that what has arrived is always either ahead or in the kernel.
func (c *plainConn) fillLocked(fd int) (enough bool) {
	if len(c.ahead) == 0 {
		c.ahead = c.buf[:0]
	}
	for c.err == nil && len(c.ahead) < cap(c.ahead) {
		n, err := unix.Read(fd, c.ahead[len(c.ahead):cap(c.ahead)])
		switch {
		case err == unix.EAGAIN:
			return false
		case err == unix.EINTR:
		case err != nil:
			c.endLocked(c.failed("read", err))
		case n == 0:
			c.endLocked(io.EOF)
		default:
			c.ahead = c.ahead[:len(c.ahead)+n]
			c.filled.give()
		}
	}
	return true
}

func (c *plainConn) endLocked(err error) {
	c.err = err
	close(c.ended)
	c.filled.give()
}

// TryRead implements Conn.
func (c *plainConn) TryRead(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.isOver:
		return 0, c.failed("read", net.ErrClosed)
	case len(p) == 0:
		return 0, nil
	case len(c.ahead) > 0:
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		c.got.Add(uint64(n))
		if len(c.ahead) == 0 {
			select {
			case c.drained <- struct{}{}:
			default:
			}
		}
		return n, nil
	case c.err != nil:
		return 0, c.err
	}
	return 0, ErrAgain
}

// Read implements net.Conn.
func (c *plainConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		if c.readDeadline.hasPassed() {
			return 0, c.failed("read", os.ErrDeadlineExceeded)
		}
		if n, err := c.TryRead(p); err != ErrAgain {
			return n, err
		}
		c.filled.wait()
	}
}

// OnReadable implements Conn. This goroutine calls Serve, and waits.
func (c *plainConn) OnReadable(r Reader) (left bool, err error) {
	for {
		if c.readDeadline.hasPassed() {
			return false, c.failed("read", os.ErrDeadlineExceeded)
		}
		if !r.Serve() {
			return false, nil
		}
		for !c.readable() && !c.readDeadline.hasPassed() {
			c.filled.wait()
		}
	}
}

// readable reports whether TryRead would return something else than ErrAgain.
func (c *plainConn) readable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isOver || len(c.ahead) > 0 || c.err != nil
}

// Unread implements Conn.
func (c *plainConn) Unread() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.raw.Control(func(fd uintptr) { c.fillLocked(int(fd)) }); err != nil {
		return 1
	}
	return len(c.ahead)
}

// Write implements net.Conn.
func (c *plainConn) Write(p []byte) (done int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		n, err := c.stream.Write(p[done:min(len(p), done+writeSize)])
		c.wrote.Add(uint64(n))
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// TryWrite implements Conn.
func (c *plainConn) TryWrite(p []byte) (n int, err error) {
	if ctlErr := c.raw.Control(func(fd uintptr) {
		for err = unix.EINTR; err == unix.EINTR; {
			n, err = unix.Write(int(fd), p)
		}
	}); ctlErr != nil {
		return 0, c.failed("write", net.ErrClosed)
	}
	switch {
	case err == unix.EAGAIN:
		return 0, ErrAgain
	case err != nil:
		return 0, c.failed("write", err)
	}
	c.wrote.Add(uint64(n))
	return n, nil
}

// Close implements net.Conn.
func (c *plainConn) Close() error {
	c.mu.Lock()
	again := c.isOver
	c.isOver = true
	c.mu.Unlock()
	if again {
		return c.failed("close", net.ErrClosed)
	}
	close(c.closed)
	c.filled.give()
	err := c.stream.Close()
	<-c.done
	c.readDeadline.set(time.Time{}, nil)
	return err
}

// PeerEnded implements Conn.
func (c *plainConn) PeerEnded() <-chan struct{} { return c.ended }

// Written implements Conn.
func (c *plainConn) Written() uint64 { return c.wrote.Load() }

// Received implements Conn.
func (c *plainConn) Received() uint64 { return c.got.Load() }

// Loop implements Conn.
func (c *plainConn) Loop() Loop { return plainLoop{} }

// SetDeadline implements net.Conn.
func (c *plainConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *plainConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isOver {
		return c.failed("set deadline", net.ErrClosed)
	}
	c.readDeadline.set(t, c.filled.give)
	return nil
}

func (c *plainConn) failed(op string, err error) error { return opError(c, op, err) }
