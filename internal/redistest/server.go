// Package redistest runs a real Redis for tests.
//
// A server keeps its data in a directory of its own, which is removed with it, and dies with the
// test process.
package redistest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gomodule/redigo/redis"

	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/servertest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// patience bounds the start of a server and each request of this package.
const patience = 60 * time.Second

// Server is a Redis. It can be stopped and started again.
type Server struct {
	servertest.Process
	dir  string
	port *ports.Port

	password string // of the operator
	tls      *tls.Config
	clock    *os.File // the offset of its clock; nil without WithClock
}

var shared servertest.Shared[*Server]

// Shared returns the server that all tests of this process share. Tests must not change it and
// must use keys of their own. StopShared ends it.
func Shared(t testing.TB) *Server {
	t.Helper()
	return shared.Get(t, func() (*Server, error) { return start() })
}

// StopShared ends the shared server, if there is one. It is called after the last test of the
// process.
func StopShared() { shared.Stop() }

// Start returns a server for one test, which may stop, pause or restore it. It ends with the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	stopwatch.AwaitRoom(t)
	s, err := start(opts...)
	if err != nil {
		t.Fatalf("start Redis: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Addr returns host:port.
func (s *Server) Addr() string { return s.port.Address() }

// Settings are the environment variables with which Fencepost keeps its leases there, under a prefix.
func (s *Server) Settings(prefix string) []string {
	return []string{"FENCEPOST_ELECTION_PROVIDER=redis", "FENCEPOST_ELECTION_REDIS_ADDRESS=" + s.Addr(), "FENCEPOST_ELECTION_REDIS_PREFIX=" + prefix}
}

// Do runs a command as the operator, and returns its answer; an absent value is nil.
func (s *Server) Do(t testing.TB, command ...any) any {
	t.Helper()
	answer, err := s.Try(command...)
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	return answer
}

// Try is Do with the error.
func (s *Server) Try(command ...any) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := redis.DialContext(ctx, "tcp", s.Addr(), redis.DialPassword(s.password), redis.DialUseTLS(s.tls != nil), redis.DialTLSConfig(s.tls))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answer, err := redis.DoContext(conn, ctx, fmt.Sprint(command[0]), command[1:]...)
	return plain(answer), err
}

// plain returns an answer with its texts as strings.
func plain(answer any) any {
	switch a := answer.(type) {
	case []byte:
		return string(a)
	case []any:
		for i := range a {
			a[i] = plain(a[i])
		}
	}
	return answer
}

// Restart starts a server that does not run, and returns when it serves.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatalf("start Redis again: %v", err)
	}
}

// Backup returns a copy of the data of the server, which is stopped meanwhile.
func (s *Server) Backup(t testing.TB) (backup string) {
	t.Helper()
	backup = filepath.Join(t.TempDir(), "backup")
	s.Kill()
	if err := os.CopyFS(backup, os.DirFS(s.data())); err != nil {
		t.Fatalf("copy the data of Redis: %v", err)
	}
	s.Restart(t)
	return backup
}

// Restore puts a copy of the data in place of what the server has, and starts it again.
func (s *Server) Restore(t testing.TB, backup string) {
	t.Helper()
	s.Kill()
	if err := errors.Join(os.RemoveAll(s.data()), os.CopyFS(s.data(), os.DirFS(backup))); err != nil {
		t.Fatalf("copy the data of Redis: %v", err)
	}
	s.Restart(t)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// Promote makes a replica a master, as a failover does.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.Do(t, "REPLICAOF", "NO", "ONE")
}

// AwaitReplicas returns when the server has so many replicas that have all its data.
func (s *Server) AwaitReplicas(t testing.TB, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		about := fmt.Sprint(s.Do(t, "INFO", "replication"))
		_, offset, _ := strings.Cut(about, "master_repl_offset:")
		offset, _, _ = strings.Cut(offset, "\r")
		if strings.Count(about, "state=online,offset="+offset+",") == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %d replicas: %s", n, about)
		}
	}
}

// Stop ends the server and discards its data. Stopping twice is harmless.
func (s *Server) Stop() {
	s.Kill()
	if s.port != nil {
		s.port.Release()
	}
	for _, f := range []*os.File{s.Log, s.clock} {
		if f != nil {
			_ = f.Close()
		}
	}
	_ = os.RemoveAll(s.dir)
}

// start starts a server.
func start(opts ...Option) (*Server, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	dir, err := os.MkdirTemp("", "redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, password: o.password, tls: o.tls}
	s.Process = servertest.Process{Name: "Redis", Program: "redis-server", Variable: "FENCEPOST_TEST_REDIS"}
	if err := s.plan(o); err != nil {
		s.Stop()
		return nil, err
	}
	if err := s.run(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// plan decides where the server keeps what, and how it is started.
func (s *Server) plan(o options) (err error) {
	if s.port, err = ports.Reserve(); err != nil {
		return err
	}
	if s.Log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return err
	}
	if err = os.Mkdir(s.data(), 0o700); err != nil {
		return err
	}
	if o.sentinel {
		file := filepath.Join(s.dir, "sentinel.conf")
		s.Args = []string{file, "--sentinel", "--port", fmt.Sprint(s.port.Number), "--bind", "127.0.0.1", "--dir", s.data()}
		return os.WriteFile(file, nil, 0o600)
	}
	serve := []string{"--port", fmt.Sprint(s.port.Number)}
	if o.tls != nil {
		serve = []string{"--port", "0", "--tls-port", fmt.Sprint(s.port.Number)}
	}
	// What is written survives a kill without fsync.
	s.Args = append(serve, "--bind", "127.0.0.1", "--dir", s.data(), "--save", "", "--appendonly", "yes", "--appendfsync", "no",
		"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
	if o.password != "" {
		s.Args = append(s.Args, "--requirepass", o.password)
	}
	s.Args = append(s.Args, o.args...)
	if o.clock {
		return s.planClock()
	}
	return nil
}

// run starts the server, and waits until it serves.
func (s *Server) run() error {
	if err := s.Launch(); err != nil {
		return err
	}
	return s.Await(patience, func() error { _, err := s.Try("PING"); return err })
}
