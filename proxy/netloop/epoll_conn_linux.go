package netloop

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epollConn is a Conn whose readiness is reported by an epollLoop, not by the
// runtime's poller. Between two bytes of its peer's it costs neither a read that
// finds nothing nor a switch of goroutines.
type epollConn struct {
	loop          *epollLoop
	key           int32 // in loop; 0 while it is in none. Guarded by use
	local, remote net.Addr

	// A system call on the descriptor holds use, so that Close cannot give its
	// number to someone else meanwhile. None of them blocks.
	use struct {
		sync.RWMutex
		fd int // -1 when closed
	}

	reading, writing            sync.Mutex // one Read, one Write at a time
	readable, writable          signal
	readDeadline, writeDeadline deadline

	ended atomic.Bool   // the peer has sent all it will
	wrote atomic.Uint64 // bytes that were taken from us
	got   atomic.Uint64 // bytes that were read

	served served
}

// newEpollConn takes conn's descriptor over, and closes conn unless it fails.
func newEpollConn(l *epollLoop, conn stream) (*epollConn, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl", dupErr)
	}
	c := &epollConn{loop: l, local: conn.LocalAddr(), remote: conn.RemoteAddr()}
	c.use.fd = fd
	// Otherwise the runtime's poller would watch the same file as this loop.
	if err := conn.Close(); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if c.key, err = l.add(fd, c); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return c, nil
}

// Loop implements Conn.
func (c *epollConn) Loop() Loop { return c.loop }

// PeerEnded implements Conn.
func (c *epollConn) PeerEnded() <-chan struct{} {
	c.served.mu.Lock()
	defer c.served.mu.Unlock()
	if c.served.peerEnded == nil {
		c.served.peerEnded = make(chan struct{})
		if c.ended.Load() {
			close(c.served.peerEnded)
		}
	}
	return c.served.peerEnded
}

// Written implements Conn.
func (c *epollConn) Written() uint64 { return c.wrote.Load() }

// Received implements Conn.
func (c *epollConn) Received() uint64 { return c.got.Load() }

// LocalAddr implements net.Conn.
func (c *epollConn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *epollConn) RemoteAddr() net.Addr { return c.remote }

// Read implements net.Conn.
func (c *epollConn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	for {
		if c.readDeadline.hasPassed() {
			return 0, c.failed("read", os.ErrDeadlineExceeded)
		}
		n, err := c.TryRead(p)
		if err != ErrAgain {
			return n, err
		}
		c.readable.wait()
	}
}

// Write implements net.Conn.
func (c *epollConn) Write(p []byte) (done int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for {
		if c.writeDeadline.hasPassed() {
			return done, c.failed("write", os.ErrDeadlineExceeded)
		}
		n, err := c.TryWrite(p[done:])
		done += n
		if done == len(p) && err == nil || err != nil && err != ErrAgain {
			return done, err
		}
		if err == nil {
			continue
		}
		c.writable.wait()
	}
}

// TryRead implements Conn.
func (c *epollConn) TryRead(p []byte) (int, error) {
	n, err := c.call(unix.SYS_RECVFROM, p, 0)
	switch {
	case err != nil && err != ErrAgain:
		return 0, c.failed("read", err)
	case err == nil && n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	c.got.Add(uint64(n))
	return n, err
}

// TryWrite implements Conn.
func (c *epollConn) TryWrite(p []byte) (int, error) {
	n, err := c.call(unix.SYS_SENDTO, p, unix.MSG_NOSIGNAL)
	if err != nil && err != ErrAgain {
		return 0, c.failed("write", err)
	}
	c.wrote.Add(uint64(n))
	return n, err
}

// call receives or sends, by the system calls of sockets: those for all files do more. The descriptor
// does not block, so the runtime need not know of the call, and its monitor has nothing to watch.
func (c *epollConn) call(number uintptr, p []byte, flags uintptr) (int, error) {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.use.fd < 0 {
		return 0, net.ErrClosed
	}
	for {
		n, _, errno := unix.RawSyscall6(number, uintptr(c.use.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), flags, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return 0, ErrAgain
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (c *epollConn) failed(op string, err error) error { return opError(c, op, err) }

// Close implements net.Conn.
func (c *epollConn) Close() error {
	err := c.release()
	if err == net.ErrClosed {
		return c.failed("close", err)
	}
	c.readDeadline.set(time.Time{}, nil)
	c.writeDeadline.set(time.Time{}, nil)
	c.readable.give()
	c.writable.give()
	c.end(net.ErrClosed)
	if err != nil {
		return c.failed("close", err)
	}
	return nil
}

// release closes the descriptor.
func (c *epollConn) release() error {
	c.use.Lock()
	defer c.use.Unlock()
	if c.use.fd < 0 {
		return net.ErrClosed
	}
	fd := c.use.fd
	c.loop.remove(fd, c.key)
	c.use.fd = -1
	return unix.Close(fd)
}

var _ Detachable = (*epollConn)(nil)

// Detach implements Detachable.
func (c *epollConn) Detach() (fd int, err error) {
	c.use.Lock()
	defer c.use.Unlock()
	if c.use.fd < 0 {
		return -1, c.failed("detach", net.ErrClosed)
	}
	if fd, err = unix.FcntlInt(uintptr(c.use.fd), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return -1, c.failed("fcntl", err)
	}
	c.loop.remove(c.use.fd, c.key)
	c.key = 0
	return fd, nil
}

// Attach implements Detachable.
func (c *epollConn) Attach() (err error) {
	c.use.Lock()
	defer c.use.Unlock()
	if c.use.fd < 0 {
		return c.failed("attach", net.ErrClosed)
	}
	c.key, err = c.loop.add(c.use.fd, c)
	return err
}

// CloseWrite implements Conn.
func (c *epollConn) CloseWrite() error {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.use.fd < 0 {
		return c.failed("shutdown", net.ErrClosed)
	}
	if err := unix.Shutdown(c.use.fd, unix.SHUT_WR); err != nil {
		return c.failed("shutdown", err)
	}
	return nil
}

// Unread implements Conn.
func (c *epollConn) Unread() int {
	c.use.RLock()
	defer c.use.RUnlock()
	n, err := unix.IoctlGetInt(c.use.fd, unix.SIOCINQ)
	if err != nil {
		return 1
	}
	return n
}

// SetDeadline implements net.Conn.
func (c *epollConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *epollConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline(&c.readDeadline, t, func() {
		c.readable.give()
		c.end(os.ErrDeadlineExceeded)
	})
}

// SetWriteDeadline implements net.Conn.
func (c *epollConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline(&c.writeDeadline, t, c.writable.give)
}

func (c *epollConn) setDeadline(d *deadline, t time.Time, passed func()) error {
	c.use.RLock()
	defer c.use.RUnlock()
	if c.use.fd < 0 {
		return c.failed("set deadline", net.ErrClosed)
	}
	d.set(t, passed)
	return nil
}
