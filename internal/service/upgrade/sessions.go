package upgrade

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sessions are passed over a socket of their own, one after the other, and given away one by one or several at once:
//
//	old process (Offer, Commit)              new process (Take)
//	state, and both connections  ---------->  examines whether it can serve the session
//	                             <----------  why it does not take it, or nothing
//	commit                       ---------->  serves all that it has accepted
//
// Until the old process commits, it has the sessions, whatever becomes of the new one. If it cannot commit, the new one
// drops them. What the old one says begins with a header: its kind, and the length of what follows in four bytes,
// big-endian, which also precedes an answer.

// sessionsSocket is the name under which the new process inherits the socket. It contains the version of what is said
// there, and of the states: a process that knows another version finds no such socket, and then no session is passed.
const sessionsSocket = "sessions, version 2"

const (
	// passPatience is how long the new process, which may be frozen, may take for one session. It gives up sooner by
	// itself.
	passPatience = 2 * time.Second
	// commitPatience is for how long the old process, which may be frozen, may say nothing while the new one has sessions
	// that it has accepted: the candidacy of a leader asks for nothing meanwhile. The old one waits for less.
	commitPatience = 2 * passPatience
	// maxPassed bounds the length of a state and of an answer, in bytes. A startup packet has at most 10,000.
	maxPassed = 64 << 10
	// descriptors is how many a session has.
	descriptors = 2
	// headerLen is the length of a header.
	headerLen = 5
)

// The kinds of what the old process says.
const (
	kindOffer  = 'o'
	kindCommit = 'c'
	kindDrop   = 'd'
)

// Offer asks the new process to take a session: a state, and descriptors of its client and its server, which stay the
// caller's. It returns why the new process does not. What it has accepted, it serves after Commit, and drops after Drop,
// or when nothing can be said to it any more. Call it after Serve.
func (s *Successor) Offer(ctx context.Context, state []byte, client, server int) error {
	until := time.Now().Add(passPatience)
	if end, ok := ctx.Deadline(); ok && end.Before(until) {
		until = end
	}
	var refused error
	return errors.Join(s.say(until, func(to *net.UnixConn) (err error) {
		refused, err = offer(to, state, unix.UnixRights(client, server))
		return err
	}), refused)
}

// Commit gives the new process the sessions that it has accepted since the last Commit or Drop. After an error, it has
// dropped them, or will.
func (s *Successor) Commit() error {
	return s.say(time.Now().Add(passPatience), func(to *net.UnixConn) error { return write(to, kindCommit, nil, nil) })
}

// Drop takes back the sessions that the new process has accepted since then.
func (s *Successor) Drop() {
	_ = s.say(time.Now().Add(passPatience), func(to *net.UnixConn) error { return write(to, kindDrop, nil, nil) })
}

// Broken returns why nothing more can be passed to the new process, nil if something may.
func (s *Successor) Broken() error { return s.broken }

// say says something to the new process, until that time.
func (s *Successor) say(until time.Time, what func(to *net.UnixConn) error) error {
	if s.broken != nil {
		return s.broken
	}
	err := s.sessions.SetDeadline(until)
	if err == nil {
		err = what(s.sessions)
	}
	if err != nil {
		_ = s.sessions.Close() // so that the new process drops what is not committed, and nothing more is passed
		s.broken = fmt.Errorf("pass a session to the new process: %w", err)
	}
	return s.broken
}

// offer returns why the new process refuses a session. After err, it serves neither this one nor another one.
func offer(to *net.UnixConn, state, rights []byte) (refused, err error) {
	if len(state) > maxPassed {
		return fmt.Errorf("the state of the session is %d bytes long", len(state)), nil
	}
	if err := write(to, kindOffer, state, rights); err != nil {
		return nil, err
	}
	length := make([]byte, 4)
	if _, err := io.ReadFull(to, length); err != nil {
		return nil, err
	}
	why, err := read(to, length)
	if err == nil && len(why) > 0 {
		refused = errors.New(string(why))
	}
	return refused, err
}

// write writes a header, with descriptors, and what follows it. A commit is one system call: after an error, the other
// process does not have it.
func write(to *net.UnixConn, kind byte, text, rights []byte) error {
	if _, _, err := to.WriteMsgUnix(append([]byte{kind}, lengthOf(text)...), rights, nil); err != nil || len(text) == 0 {
		return err
	}
	_, err := to.Write(text)
	return err
}

// Take examines a session that the old process passes. It owns the connections from then on. An error refuses the
// session.
type Take func(state []byte, client, server net.Conn) (Arrival, error)

// Arrival is a session that can be served: Begin is called if the old process has given it away, and otherwise Drop. Of
// several that are given away at once, the last one begins first. Neither may block.
type Arrival interface {
	Begin()
	Drop()
}

// receive takes sessions until the old process passes no more, and closes from then.
func receive(from *net.UnixConn, take Take) {
	var accepted []Arrival
	drop := func() {
		for _, a := range accepted {
			a.Drop()
		}
		accepted = nil
	}
	defer func() { _ = from.Close(); drop() }()
	for {
		until := time.Time{}
		if len(accepted) > 0 {
			until = time.Now().Add(commitPatience)
		}
		_ = from.SetReadDeadline(until)
		kind, state, conns, err := receiveOne(from)
		if errors.Is(err, os.ErrDeadlineExceeded) && from.CloseRead() == nil { // no commit succeeds from now on
			_ = from.SetReadDeadline(time.Time{})
			kind, state, conns, err = receiveOne(from) // one may have come
		}
		switch {
		case err != nil:
			return
		case kind == kindCommit:
			for _, a := range slices.Backward(accepted) {
				a.Begin()
			}
			accepted = nil
			continue
		case kind == kindDrop:
			drop()
			continue
		}
		refused := errors.New("the new process may have no file descriptor left")
		if len(conns) == descriptors {
			var arrival Arrival
			if arrival, refused = take(state, conns[0], conns[1]); refused == nil {
				accepted = append(accepted, arrival)
			}
		} else {
			closeAll(conns)
		}
		why := []byte{}
		if refused != nil {
			why = []byte(refused.Error())
		}
		why = why[:min(len(why), maxPassed)]
		if _, err = from.Write(append(lengthOf(why), why...)); err != nil {
			return
		}
	}
}

// receiveOne receives what the old process says. Connections are missing if this process could not open them.
func receiveOne(from *net.UnixConn) (kind byte, state []byte, conns []net.Conn, err error) {
	header, rights := make([]byte, headerLen), make([]byte, unix.CmsgSpace(4*descriptors))
	n, r, _, _, err := from.ReadMsgUnix(header, rights)
	conns = connsOf(rights[:r])
	if err == nil && n < len(header) {
		err = io.EOF
	}
	if err == nil {
		if state, err = read(from, header[1:]); err != nil {
			err = io.ErrUnexpectedEOF // also when it comes too late: what follows is the rest of it
		}
	}
	if err != nil {
		closeAll(conns)
	}
	return header[0], state, conns, err
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
