package zookeeper

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The first message of a connection, from either side: the length of the rest (4 bytes), the
// version of the protocol (4), and then the highest zxid that the client has seen (8), or the
// session's timeout in ms (4) and its id (8).
const (
	zxidAt, zxidEnd = 8, 16
	timeoutAt       = 8
	sessionAt       = 12
	greetingEnd     = 20
)

// Each later message of the client: the length of the rest (4 bytes), the request's number (4), and
// the opcode (4). The last byte of the requests below is 1 if they set a watch, and 0 otherwise.
const (
	opcodeAt, opcodeEnd = 8, 12

	opExists       = 3
	opGetData      = 4
	opGetChildren2 = 12
)

// dial connects to a server. The library calls it when it has no connection. The connection that
// it returns makes sure that the library gets no other session than its first one.
func (s *session) dial(network, address string, _ time.Duration) (net.Conn, error) {
	if s.isOver() {
		return nil, errOver
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.answerWithin())
	defer cancel()
	conn, err := s.connect(ctx, network, address)
	if err != nil {
		s.noteCause(err)
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(s.answerWithin())); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	l := &link{Conn: conn, s: s}
	if !s.use(l) {
		return nil, errors.Join(errOver, conn.Close())
	}
	return l, nil
}

func (s *session) connect(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil || s.security == nil {
		return conn, err
	}
	config := s.security().Clone()
	if config.ServerName = s.serverName; config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config.ServerName = host
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", address, err), conn.Close())
	}
	return secure, nil
}

// answerWithin bounds the connection to a server, and then its first answer. The library would
// wait for that for almost seven session timeouts.
func (s *session) answerWithin() time.Duration {
	return max(time.Second, min(5*time.Second, s.timeout/4))
}

// link is a connection to a server. The library writes from one goroutine at a time, and reads
// from one.
type link struct {
	net.Conn
	s        *session
	asked    bool   // the client's first message was written
	greeting []byte // the beginning of the server's first message, until greetingEnd
	met      bool   // that has come whole; it does not change while the library reads and writes at once
	frames   frames
}

// Write leaves out of the first message which zxid the client has seen. In a session for watching it
// makes each request that reads set a watch. The library's own requests that set one cannot be used:
// go-zookeeper 1.0.4 has a data race when a connection begins while it knows of watches (sendSetWatches
// reads lastZxid, and recvLoop writes it), and the first watch may be known before that is done. The
// library writes one message at a time.
func (l *link) Write(p []byte) (int, error) {
	switch {
	case l.s.hungUp():
		return 0, net.ErrClosed
	case !l.asked && len(p) >= zxidEnd:
		l.asked = true
		p = bytes.Clone(p)
		clear(p[zxidAt:zxidEnd])
	case l.asked && l.s.watching && reads(p):
		p = bytes.Clone(p)
		p[len(p)-1] = 1
	}
	return l.Conn.Write(p)
}

// reads reports whether a message asks for what can be watched.
func reads(message []byte) bool {
	if len(message) <= opcodeEnd {
		return false
	}
	switch binary.BigEndian.Uint32(message[opcodeAt:]) {
	case opExists, opGetData, opGetChildren2:
		return true
	}
	return false
}

// Read looks at the first message, and notes why a connection ends.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err != nil {
		l.s.noteCause(l.lost(err))
	}
	if err != nil {
		return n, err
	}
	if err := l.frames.follow(p[:n]); err != nil {
		err = fmt.Errorf("%s: %w", l.RemoteAddr(), err)
		l.s.noteCause(err)
		return 0, err
	}
	if l.met {
		return n, nil
	}
	if missing := greetingEnd - len(l.greeting); missing > 0 {
		l.greeting = append(l.greeting, p[:min(n, missing)]...)
	}
	if l.met = l.frames.whole > 0; !l.met {
		return n, nil
	}
	granted := time.Duration(binary.BigEndian.Uint32(l.greeting[timeoutAt:])) * time.Millisecond
	if !l.s.greeted(int64(binary.BigEndian.Uint64(l.greeting[sessionAt:])), granted) {
		return 0, errOver
	}
	return n, l.Conn.SetDeadline(time.Time{})
}

// SetReadDeadline implements net.Conn. Until the server's first message has come whole, the deadline is
// the one that dial has set.
func (l *link) SetReadDeadline(t time.Time) error {
	if !l.met {
		return nil
	}
	return l.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (l *link) SetWriteDeadline(t time.Time) error {
	if !l.met {
		return nil
	}
	return l.Conn.SetWriteDeadline(t)
}

// lost says why a connection has ended.
func (l *link) lost(err error) error {
	server := l.RemoteAddr()
	switch timeout := (net.Error)(nil); {
	case len(l.greeting) == 0 && errors.Is(err, io.EOF):
		return fmt.Errorf("%s has hung up: it does not serve clients now (has it a quorum?), or it expects TLS: %w", server, err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer: %w", server, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s has closed the connection: %w", server, err)
	}
	return err
}
