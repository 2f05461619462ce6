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
	"unsafe"

	"golang.org/x/sys/unix"
)

// Conn is a stream connection whose readiness is told by a loop of ours, not
// by the runtime's poller. It is a net.Conn like any other; besides, its reader
// can leave the reading to the loop (OnReadable), which costs a message neither a
// read that finds nothing nor a switch of goroutines.
type Conn struct {
	loop          *Loop
	key           int32 // in loop
	local, remote net.Addr

	// A system call on the descriptor holds use, so that Close cannot give its
	// number to somebody else meanwhile. None of them blocks.
	use struct {
		sync.RWMutex
		fd int // -1 when closed
	}
	closed chan struct{}

	reading, writing            sync.Mutex // one Read, one Write at a time
	readable, writable          chan struct{}
	readDeadline, writeDeadline deadline

	ended   atomic.Bool   // the peer has sent all it will
	sentAll chan struct{} // closed when ended is set
	wrote   atomic.Uint64 // bytes that were taken from us

	fastPath struct {
		sync.Mutex
		serve func() (stay bool)
		left  chan struct{}
	}
}

// ErrAgain says that a socket has nothing to read, or no room to write.
const ErrAgain = unix.EAGAIN

// newSocket takes conn's descriptor over. conn is closed; on failure too.
func newSocket(l *Loop, conn net.Conn) (*Conn, error) {
	defer conn.Close() // again is harmless
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("take connection over: a %T has no descriptor", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("take connection over: %w", err)
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
		return nil, fmt.Errorf("take connection over: %w", err)
	}
	if dupErr != nil {
		return nil, fmt.Errorf("take connection over: %w", os.NewSyscallError("fcntl", dupErr))
	}
	s := &Conn{
		loop: l, local: conn.LocalAddr(), remote: conn.RemoteAddr(), closed: make(chan struct{}), sentAll: make(chan struct{}),
		readable: make(chan struct{}, 1), writable: make(chan struct{}, 1),
	}
	s.use.fd = fd
	s.fastPath.left = make(chan struct{}, 1)
	// Of one file the runtime's poller and ours would both be told.
	if err := conn.Close(); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("take connection over: %w", err)
	}
	if s.key, err = l.add(fd, s); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("take connection over: %w", err)
	}
	return s, nil
}

// Loop is the loop that tells what the socket can do.
func (s *Conn) Loop() *Loop { return s.loop }

// PeerEnded is closed when the peer has sent all it will, also before that was
// read.
func (s *Conn) PeerEnded() <-chan struct{} { return s.sentAll }

// Written returns how many bytes were taken from us for the peer.
func (s *Conn) Written() uint64 { return s.wrote.Load() }

func (s *Conn) LocalAddr() net.Addr  { return s.local }
func (s *Conn) RemoteAddr() net.Addr { return s.remote }

// Read implements net.Conn.
func (s *Conn) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	for {
		select {
		case <-s.readDeadline.passed():
			return 0, s.failed("read", os.ErrDeadlineExceeded)
		default:
		}
		n, err := s.TryRead(p)
		if err != ErrAgain {
			return n, err
		}
		select {
		case <-s.readable:
		case <-s.closed:
		case <-s.readDeadline.passed():
		}
	}
}

// Write implements net.Conn.
func (s *Conn) Write(p []byte) (done int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for {
		select {
		case <-s.writeDeadline.passed():
			return done, s.failed("write", os.ErrDeadlineExceeded)
		default:
		}
		n, err := s.TryWrite(p[done:])
		done += n
		if done == len(p) && err == nil || err != nil && err != ErrAgain {
			return done, err
		}
		if err == nil {
			continue
		}
		select {
		case <-s.writable:
		case <-s.closed:
		case <-s.writeDeadline.passed():
		}
	}
}

// TryRead reads what there is. It returns ErrAgain when that is nothing.
func (s *Conn) TryRead(p []byte) (int, error) {
	n, err := s.call(unix.SYS_READ, p)
	switch {
	case err != nil && err != ErrAgain:
		return 0, s.failed("read", err)
	case err == nil && n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, err
}

// TryWrite writes what there is room for. It returns ErrAgain when that is
// nothing.
func (s *Conn) TryWrite(p []byte) (int, error) {
	n, err := s.call(unix.SYS_WRITE, p)
	if err != nil && err != ErrAgain {
		return 0, s.failed("write", err)
	}
	s.wrote.Add(uint64(n))
	return n, err
}

// call reads or writes. The descriptor does not block, so the runtime need not
// know of the system call, and its monitor has nothing to watch.
func (s *Conn) call(number uintptr, p []byte) (int, error) {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.use.fd < 0 {
		return 0, net.ErrClosed
	}
	for {
		n, _, errno := unix.RawSyscall(number, uintptr(s.use.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), nil
		case unix.EAGAIN:
			return 0, ErrAgain // an error value that costs no allocation
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func (s *Conn) failed(op string, err error) error {
	if errno, ok := err.(unix.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: s.remote.Network(), Source: s.local, Addr: s.remote, Err: err}
}

// Close implements net.Conn. Who waits for the socket gets net.ErrClosed.
func (s *Conn) Close() error {
	s.use.Lock()
	defer s.use.Unlock()
	if s.use.fd < 0 {
		return s.failed("close", net.ErrClosed)
	}
	s.loop.remove(s.key)
	err := unix.Close(s.use.fd)
	s.use.fd = -1
	close(s.closed)
	s.readDeadline.set(time.Time{})
	s.writeDeadline.set(time.Time{})
	if err != nil {
		return s.failed("close", err)
	}
	return nil
}

// CloseWrite ends the writing side.
func (s *Conn) CloseWrite() error {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.use.fd < 0 {
		return s.failed("shutdown", net.ErrClosed)
	}
	if err := unix.Shutdown(s.use.fd, unix.SHUT_WR); err != nil {
		return s.failed("shutdown", err)
	}
	return nil
}

// Unread returns how many bytes of the peer's have arrived and were not read.
// What it cannot know counts as pending.
func (s *Conn) Unread() int {
	s.use.RLock()
	defer s.use.RUnlock()
	n, err := unix.IoctlGetInt(s.use.fd, unix.SIOCINQ)
	if err != nil {
		return 1
	}
	return n
}

// SetDeadline implements net.Conn.
func (s *Conn) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *Conn) SetReadDeadline(t time.Time) error { return s.setDeadline(&s.readDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (s *Conn) SetWriteDeadline(t time.Time) error { return s.setDeadline(&s.writeDeadline, t) }

func (s *Conn) setDeadline(d *deadline, t time.Time) error {
	s.use.RLock()
	defer s.use.RUnlock()
	if s.use.fd < 0 {
		return s.failed("set deadline", net.ErrClosed)
	}
	d.set(t)
	return nil
}
