package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// stub is a server that runs nothing: it answers logins, and each statement with no rows. So it bears more
// connections than Postgres. It relays those of the control role to Postgres, because the grants of a
// fenced resource are real, and says that all others have one backend of Postgres, which does nothing.
type stub struct {
	idle     idleBackend
	at       place
	postgres string
	version  string
	tls      *tls.Config // nil without TLS
	listener net.Listener
	all      sync.WaitGroup // what serves
}

// startStub starts the server of a route. dsn leads to its idle backend.
func (s *servers) startStub(r route, dsn string) (*stub, error) {
	to := place{loopback, s.pgPort}
	one := &stub{idle: idleBackend{dsn: dsn}, postgres: to.address(), version: s.version}
	if r.tls {
		cert, err := tls.LoadX509KeyPair(s.certificate(), s.key())
		if err != nil {
			return nil, err
		}
		one.tls = &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	listener, err := net.Listen("tcp", loopback+":0")
	if err != nil {
		return nil, err
	}
	one.listener = listener
	if one.at.host, one.at.port, err = net.SplitHostPort(listener.Addr().String()); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	one.all.Go(one.accept)
	return one, nil
}

// stop waits for the connections to end: whoever has them was stopped before.
func (s *stub) stop() {
	_ = s.listener.Close() // which is all that it could fail to do
	s.all.Wait()
	s.idle.close(context.Background())
}

func (s *stub) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return // it is closed
		}
		s.all.Go(func() { s.serve(conn) })
	}
}

// serve answers a connection until it ends. What the stub cannot answer ends it, too, so that the client sees
// a failure.
func (s *stub) serve(conn net.Conn) {
	defer conn.Close()
	for {
		backend := pgproto3.NewBackend(conn, conn)
		first, err := backend.ReceiveStartupMessage()
		if err != nil {
			return
		}
		switch m := first.(type) {
		case *pgproto3.SSLRequest:
			answer := "N"
			if s.tls != nil {
				answer = "S"
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
			if s.tls != nil {
				conn = tls.Server(conn, s.tls)
			}
		case *pgproto3.GSSEncRequest:
			if _, err := io.WriteString(conn, "N"); err != nil {
				return
			}
		case *pgproto3.StartupMessage:
			if m.Parameters["user"] != role {
				s.relay(conn, m)
				return
			}
			as, err := s.idle.now(context.Background()) // at once, or Postgres has ended
			if err != nil {
				return
			}
			s.greet(backend, as)
			for backend.Flush() == nil {
				if m, err := backend.Receive(); err != nil || !answer(backend, m, as) {
					return
				}
			}
			return
		default:
			return
		}
	}
}

// relay connects a client with Postgres, until either ends.
func (s *stub) relay(conn net.Conn, m *pgproto3.StartupMessage) {
	server, err := net.Dial("tcp", s.postgres)
	if err != nil {
		return
	}
	defer server.Close()
	first, err := m.Encode(nil)
	if err != nil {
		return
	}
	if _, err := server.Write(first); err != nil {
		return
	}
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, conn) // its end is that of the relay
		_ = server.Close()
	})
	_, _ = io.Copy(conn, server)
	_ = conn.Close()
	up.Wait()
}

// idleBackend is a backend of Postgres that does nothing. A grant ends it, because it is registered.
type idleBackend struct {
	dsn string
	mu  sync.Mutex
	on  *pgx.Conn // nil before the first
	is  identity
}

// identity is what Fencepost asks of a backend.
type identity struct {
	pid           int32
	started, seen []byte // when its server was started, and a time at which it was there
}

// now returns who the backend is now.
func (b *idleBackend) now(ctx context.Context) (identity, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on != nil && b.on.PgConn().CheckConn() == nil {
		return b.is, nil
	}
	b.close(ctx)
	var err error
	if b.on, err = pgx.Connect(ctx, b.dsn); err != nil {
		return identity{}, err
	}
	err = b.on.QueryRow(ctx, "SELECT pg_backend_pid(), timestamptz_send(pg_postmaster_start_time()), timestamptz_send(clock_timestamp())").
		Scan(&b.is.pid, &b.is.started, &b.is.seen)
	return b.is, err
}

// close ends it. No one else may use it.
func (b *idleBackend) close(ctx context.Context) {
	if b.on != nil {
		_ = b.on.Close(ctx) // a grant may have ended it
		b.on = nil
	}
}

func (s *stub) greet(to *pgproto3.Backend, as identity) {
	to.Send(&pgproto3.AuthenticationOk{})
	for _, p := range [][2]string{
		{"server_version", s.version}, {"server_encoding", "UTF8"}, {"client_encoding", "UTF8"}, {"standard_conforming_strings", "on"},
		{"integer_datetimes", "on"}, {"DateStyle", "ISO, MDY"}, {"TimeZone", "UTC"}, {"in_hot_standby", "off"}, {"application_name", ""},
	} {
		to.Send(&pgproto3.ParameterStatus{Name: p[0], Value: p[1]})
	}
	to.Send(&pgproto3.BackendKeyData{ProcessID: uint32(as.pid), SecretKey: []byte{0, 0, 0, 1}})
	to.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
}

// answer answers a message, and reports whether it could.
func answer(to *pgproto3.Backend, m pgproto3.FrontendMessage, as identity) bool {
	switch m := m.(type) {
	case *pgproto3.Query:
		to.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
		to.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	case *pgproto3.FunctionCall: // Fencepost asks which backend it is
		const pid, clock = 2026, 2649
		result := as.started
		switch m.Function {
		case pid:
			result = binary.BigEndian.AppendUint32(nil, uint32(as.pid))
		case clock:
			result = as.seen
		}
		to.Send(&pgproto3.FunctionCallResponse{Result: result})
		to.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	case *pgproto3.Parse:
		to.Send(&pgproto3.ParseComplete{})
	case *pgproto3.Bind:
		to.Send(&pgproto3.BindComplete{})
	case *pgproto3.Describe:
		to.Send(&pgproto3.NoData{})
	case *pgproto3.Execute:
		to.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 0")})
	case *pgproto3.Close:
		to.Send(&pgproto3.CloseComplete{})
	case *pgproto3.Sync:
		to.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	case *pgproto3.Flush:
	default:
		return false
	}
	return true
}

// allowFiles raises the limit of open files of this program, and of those that it starts, to n.
func allowFiles(n int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < uint64(n) {
		return errors.New("the limit of open files is too low for so many idle connections: raise it (ulimit -Hn), or give fewer -connections")
	}
	limit.Cur = limit.Max
	return os.NewSyscallError("setrlimit", syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
}
