package upgrade

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sessions are passed over a socket of their own, one after the other:
//
//	old process (Pass)                       new process (Take)
//	state, and both connections  ---------->  examines whether it can serve the session
//	                             <----------  why it does not take it, or nothing
//	commit                       ---------->  serves it
//
// Until the old process commits, it has the session, whatever becomes of the new one. If it cannot commit, the new one
// drops the session. A length in four bytes, big-endian, precedes the state and the answer.

// sessionsSocket is the name under which the new process inherits the socket. It contains the version of what is said
// there, and of the states: a process that knows another version finds no such socket, and then no session is passed.
const sessionsSocket = "sessions, version 1"

const (
	// passPatience is how long the new process, which may be frozen, may take for one session.
	passPatience = time.Second
	// maxPassed bounds the length of a state and of an answer, in bytes. A startup packet has at most 10,000.
	maxPassed = 64 << 10
	// descriptors is how many a session has.
	descriptors = 2
	// commit is the byte by which the old process gives a session away.
	commit = 'c'
)

// Pass passes a session to the new process: a state, and descriptors of its client and its server, which stay the
// caller's. It returns nil if the new process serves the session from then on. Otherwise, the new process has dropped
// it, or will. Call it after Serve.
func (s *Successor) Pass(state []byte, client, server int) error {
	refused, err := pass(s.sessions, state, unix.UnixRights(client, server))
	if err != nil {
		_ = s.sessions.Close() // so that the new process drops what is not committed, and nothing more is passed
		return fmt.Errorf("pass a session to the new process: %w", err)
	}
	return refused
}

// pass returns why the new process refuses a session. After err, it serves neither this one nor another one.
func pass(to *net.UnixConn, state, rights []byte) (refused, err error) {
	if len(state) > maxPassed {
		return fmt.Errorf("the state of the session is %d bytes long", len(state)), nil
	}
	if err := to.SetDeadline(time.Now().Add(passPatience)); err != nil {
		return nil, err
	}
	if _, _, err := to.WriteMsgUnix(lengthOf(state), rights, nil); err != nil {
		return nil, err
	}
	if _, err := to.Write(state); err != nil {
		return nil, err
	}
	length := make([]byte, 4)
	if _, err := io.ReadFull(to, length); err != nil {
		return nil, err
	}
	why, err := read(to, length)
	if err != nil || len(why) > 0 {
		return errors.New(string(why)), err
	}
	_, err = to.Write([]byte{commit})
	return nil, err
}

// Take examines a session that the old process passes. It owns the connections from then on. An error refuses the
// session.
type Take func(state []byte, client, server net.Conn) (Arrival, error)

// Arrival is a session that can be served: Begin is called if the old process has given it away, and otherwise Drop.
// Neither may block.
type Arrival interface {
	Begin()
	Drop()
}

// receive takes sessions until the old process passes no more.
func receive(from *net.UnixConn, take Take) {
	for {
		state, conns, err := receiveOne(from)
		if err != nil {
			return
		}
		var arrival Arrival
		refused := errors.New("the new process may have no file descriptor left")
		if len(conns) == descriptors {
			arrival, refused = take(state, conns[0], conns[1])
		} else {
			closeAll(conns)
		}
		why := []byte{}
		if refused != nil {
			why = []byte(refused.Error())
		}
		why = why[:min(len(why), maxPassed)]
		_, err = from.Write(append(lengthOf(why), why...))
		if refused == nil && err == nil {
			said := make([]byte, 1)
			if _, err = io.ReadFull(from, said); err == nil && said[0] == commit {
				arrival.Begin()
				continue
			}
		}
		if refused == nil {
			arrival.Drop()
		}
	}
}

// receiveOne receives a session. Connections are missing if this process could not open them.
func receiveOne(from *net.UnixConn) (state []byte, conns []net.Conn, err error) {
	length, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4*descriptors))
	n, r, _, _, err := from.ReadMsgUnix(length, rights)
	conns = connsOf(rights[:r])
	if err == nil && n < len(length) {
		err = io.EOF
	}
	if err == nil {
		state, err = read(from, length)
	}
	if err != nil {
		closeAll(conns)
	}
	return state, conns, err
}

func closeAll(conns []net.Conn) {
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// connsOf returns the connections that have come with a message.
func connsOf(rights []byte) (conns []net.Conn) {
	messages, _ := unix.ParseSocketControlMessage(rights)
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), "session")
			if conn, err := net.FileConn(f); err == nil { // which has a descriptor of its own
				conns = append(conns, conn)
			}
			_ = f.Close()
		}
	}
	return conns
}

func lengthOf(text []byte) []byte { return binary.BigEndian.AppendUint32(nil, uint32(len(text))) }

// read reads what has that length.
func read(from io.Reader, length []byte) ([]byte, error) {
	n := binary.BigEndian.Uint32(length)
	if n > maxPassed {
		return nil, errVersion
	}
	text := make([]byte, n)
	_, err := io.ReadFull(from, text)
	return text, err
}

// socketPair returns both ends of a socket, the second one as a file.
func socketPair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	other := os.NewFile(uintptr(fds[1]), "sessions")
	conn, err := unixConn(os.NewFile(uintptr(fds[0]), "sessions"))
	if err != nil {
		_ = other.Close()
	}
	return conn, other, err
}

// unixConn returns the connection of a socket, and closes the file.
func unixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	local, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, errVersion
	}
	return local, nil
}
