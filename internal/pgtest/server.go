package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/child"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// The roles of every server, and the password of those that need one.
const (
	Superuser = "postgres"
	Control   = "fencepost"
	App       = "app"
	Password  = "secret"
)

// patience bounds every wait for a server. It is far longer than a loaded machine
// needs.
const patience = 60 * time.Second

// Mode is a way to stop a server.
type Mode syscall.Signal

const (
	// Smart waits for clients to leave.
	Smart = Mode(syscall.SIGTERM)
	// Fast ends the clients' sessions and writes a checkpoint.
	Fast = Mode(syscall.SIGINT)
	// Immediate is a crash: what was not flushed is lost.
	Immediate = Mode(syscall.SIGQUIT)
)

// Option changes how Start sets up a server.
type Option func(*Server)

// WithBinaries uses the server in dir.
func WithBinaries(dir string) Option { return func(s *Server) { s.bin = dir } }

// WithConfig adds settings to postgresql.conf.
func WithConfig(settings map[string]string) Option {
	return func(s *Server) {
		for name, value := range settings {
			s.settings[name] = value
		}
	}
}

// Server is one PostgreSQL server.
type Server struct {
	bin      string
	found    string      // where bin was found; bin may be a copy
	dir      string      // contains data/ and the Unix socket
	port     *ports.Port // nil before the first start
	settings map[string]string
	secrets  map[string]string         // files for the data directory: name to source
	more     []string                  // directories to remove with the server
	hba      func(lines string) string // changes pg_hba.conf; may be nil
	as       *syscall.Credential
	shared   bool // by all tests of the process
	asker    asker

	mu struct {
		sync.Mutex
		process *child.Process // nil while stopped
	}
}

func newServer(opts []Option) *Server {
	s := &Server{settings: map[string]string{
		"fsync":                     "off",
		"autovacuum":                "off", // it starts a process for each database in turn
		"log_checkpoints":           "off",
		"full_page_writes":          "off",
		"jit":                       "off",     // it loads LLVM into a backend for one statement
		"shared_preload_libraries":  "plpgsql", // or each backend loads it for itself
		"max_connections":           "400",
		"max_prepared_transactions": "10",
		"listen_addresses":          "127.0.0.1",
		"log_line_prefix":           "%m [%p] %q%u@%d ",
		"lc_messages":               "C",
		"timezone":                  "UTC",
	}}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// Start starts a server for one test, and ends it when the test ends.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	stopwatch.AwaitRoom(t)
	s := newServer(opts)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the server's log:\n%s", s.logTail())
		}
		s.remove()
	})
	if err := s.create(); err != nil {
		t.Fatalf("start PostgreSQL: %v", err)
	}
	return s
}

// create creates the data directory, and starts the server.
func (s *Server) create() error {
	if err := s.place(); err != nil {
		return err
	}
	if err := s.fill(); err != nil {
		return err
	}
	if err := s.configure(); err != nil {
		return err
	}
	return s.start()
}

// command returns a command that runs one of the server's programs as its user.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	return cmd
}

// start runs the postmaster and waits until it accepts connections. The server keeps the
// port of its first start.
func (s *Server) start() error {
	var err error
	if s.port == nil {
		if s.port, err = ports.Reserve(); err != nil {
			return err
		}
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the server's log: %w", err)
	}
	defer log.Close()
	cmd := s.command("postgres", "-D", s.data(), "-p", strconv.Itoa(s.Port()))
	cmd.Stdout, cmd.Stderr = log, log
	child.OwnSession(cmd, syscall.SIGQUIT) // an immediate shutdown
	p, err := child.Start("PostgreSQL", cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN(Superuser, "postgres"))
		if err == nil {
			s.mu.Lock()
			s.mu.process = p
			s.mu.Unlock()
			return conn.Close(ctx)
		}
		select {
		case <-p.Done():
			return fmt.Errorf("the server ended at its start; its log ends with:\n%s", s.logTail())
		case <-ctx.Done():
			_ = syscall.Kill(p.PID(), syscall.SIGQUIT)
			<-p.Done()
			return fmt.Errorf("the server accepted no connection within %s: %w", patience, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// end stops the server if it is running. A server that does not stop in time is killed.
func (s *Server) end(mode Mode) error {
	s.mu.Lock()
	p := s.mu.process
	s.mu.process = nil
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	if err := syscall.Kill(p.PID(), syscall.Signal(mode)); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal the server: %w", err)
	}
	select {
	case <-p.Done():
		return nil
	case <-time.After(patience):
		_ = syscall.Kill(p.PID(), syscall.SIGQUIT)
		<-p.Done()
		return fmt.Errorf("the server did not stop within %s", patience)
	}
}

// remove ends the server and removes its files.
func (s *Server) remove() {
	_ = s.signalAll(syscall.SIGCONT) // it may be frozen
	_ = s.end(Immediate)
	if s.port != nil {
		s.port.Release()
	}
	for _, dir := range append(s.more, s.dir) {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
	}
}

// Log returns the server's log. A line of an error is there before the client gets the error.
func (s *Server) Log(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		t.Fatalf("read the server's log: %v", err)
	}
	return string(text)
}

// logTail returns the end of the server's log.
func (s *Server) logTail() string {
	text, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	if len(text) > 4000 {
		text = text[len(text)-4000:]
	}
	return string(text)
}

// Running reports whether the server was started and has not been stopped.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.process != nil && !s.mu.process.Ended()
}

// Stop stops the server and waits until it has ended.
func (s *Server) Stop(t testing.TB, mode Mode) {
	t.Helper()
	if err := s.end(mode); err != nil {
		t.Fatalf("stop PostgreSQL: %v", err)
	}
}

// Crash stops the server at once, without a checkpoint: what was not flushed is lost.
func (s *Server) Crash(t testing.TB) { t.Helper(); s.Stop(t, Immediate) }

// Restart stops the server if it is running, and starts it on the same port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.Stop(t, Fast)
	if err := s.start(); err != nil {
		t.Fatalf("restart PostgreSQL: %v", err)
	}
}

// PID returns the postmaster's process id, 0 while the server is stopped.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.process == nil {
		return 0
	}
	return s.mu.process.PID()
}
