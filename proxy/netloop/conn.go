package netloop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// Conn is a stream connection whose readiness a Loop reports. It is a net.Conn like
// any other; in addition, it can be read and written without waiting, and its reader
// can leave the reading to the loop.
//
// A Write, its deadlines and Close may be used by any goroutine at any time. Only
// one at a time may read, be it a goroutine by Read or TryRead, or the loop for
// a Reader; and none may call TryWrite during a Write. Deadlines hold for Read,
// Write and OnReadable. Close ends those that wait: they get net.ErrClosed.
type Conn interface {
	net.Conn

	// CloseWrite ends the writing side; what was written still arrives.
	CloseWrite() error

	// TryRead reads what there is, as Read does, but returns ErrAgain where Read
	// would wait.
	TryRead(p []byte) (int, error)

	// TryWrite writes what there is room for, and returns how much that is. It
	// returns ErrAgain when it is nothing, and when some of what it has taken still
	// has to be sent, as may be under TLS: a Write, also of nothing, does that.
	TryWrite(p []byte) (int, error)

	// OnReadable has r serve the connection, now and whenever it may have become
	// readable, until that is over: when Serve reports so, or, with an error as that
	// of Read, when the deadline passes or the connection is closed. All that has
	// arrived stays to be read then. Under TLS it is also over, without an error, when
	// much has come at once, so that no other connection waits for that.
	//
	// If left is true, the loop continues with it: the caller need not wait, and Resume
	// is called once when it is over. Otherwise it is over already, with err.
	OnReadable(r Reader) (left bool, err error)

	// Unread returns how many bytes of the peer's have arrived and were not read. It
	// is 0 only if there are none. What cannot be known counts as pending. Only the
	// goroutine that reads may call it.
	Unread() int

	// PeerEnded is closed when the peer has sent all it will, also before that was
	// read. Only a peer that has sent more than a few kilobytes since the last read
	// may be noticed later, when they are read.
	PeerEnded() <-chan struct{}

	// Written returns how many bytes were taken from us for the peer. It grows while
	// a long Write is under way.
	Written() uint64

	// Received returns how many bytes of the peer's were read.
	Received() uint64

	// Loop is the loop that adopted the connection.
	Loop() Loop
}

// Detachable is a Conn that can be given to another process. Those of an epoll loop are; a plain one is not, because it
// reads ahead, and what it has read would stay behind, and neither is one under TLS.
type Detachable interface {
	Conn

	// Withdraw takes the connection back from the Reader for which the loop continues, which is not called any more. It
	// waits for a Serve that is under way, and reports false if the loop does not continue: the Reader then reads by
	// itself.
	Withdraw() bool

	// Detach takes the connection off its loop, so that nothing reads what arrives, and returns a descriptor of it, which
	// the caller closes. No Reader may be served, and no one may read or write. Then the connection can be closed,
	// which its peer does not notice while the descriptor, or a copy of it, is open, or attached again.
	Detach() (fd int, err error)

	// Attach undoes Detach.
	Attach() error
}

// Reader is who reads from a connection that it leaves to a loop. Its methods must not
// block, and no two goroutines call them at a time.
type Reader interface {
	// Serve reads by TryRead once, and reports whether to continue. It continues if that left
	// room in its buffer: it is called again for what comes later, and for the end of input. It
	// must not go on without having read.
	Serve() (stay bool)

	// Resume is called when the loop does not continue, with the reason, as OnReadable says. Nothing
	// but Resume follows then, so that the Reader may read in a goroutine of its own.
	Resume(err error)
}

// ErrAgain says that a connection has nothing to read now, or no room to write.
var ErrAgain = errors.New("the connection is not ready")

// stream is what a loop can adopt: a connection with a descriptor.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// streamOf returns conn as a stream, or closes it.
func streamOf(conn net.Conn) (stream, error) {
	s, ok := conn.(stream)
	if !ok {
		return nil, fmt.Errorf("take connection over: a %T is no stream with a descriptor", conn)
	}
	return s, nil
}

// opError is the error of package net for an op that failed on c.
func opError(c net.Conn, op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok {
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: c.RemoteAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
