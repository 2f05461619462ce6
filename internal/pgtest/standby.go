package pgtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Standby starts a hot standby of the server, and ends it when the test ends. It streams from
// the server under the name "standby", asynchronously unless the server's
// synchronous_standby_names says otherwise. The server must have pg_basebackup: see WithTools.
func (s *Server) Standby(t testing.TB, opts ...Option) *Server {
	t.Helper()
	standby := newServer(append([]Option{WithBinaries(s.found)}, opts...))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the standby's log:\n%s", standby.logTail())
		}
		standby.remove()
	})
	if err := standby.follow(s); err != nil {
		t.Fatalf("start a standby: %v", err)
	}
	return standby
}

// follow creates the data directory as a copy of the primary's, and starts the server.
func (s *Server) follow(primary *Server) error {
	if err := s.place(); err != nil {
		return err
	}
	from := fmt.Sprintf("host=127.0.0.1 port=%d user=%s application_name=standby", primary.port, Superuser)
	out, err := s.command("pg_basebackup", "-D", s.data(), "-d", from, "-X", "stream", "-c", "fast", "--no-sync", "-R").CombinedOutput()
	if err != nil {
		return fmt.Errorf("run pg_basebackup: %w: %s", err, out)
	}
	if err := s.configure(); err != nil {
		return err
	}
	return s.startOnFreePort()
}

// Promote makes a standby a primary, and waits until it is one.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.Exec(t, Superuser, "postgres", "SELECT pg_promote()")
}

// Freeze stops all processes of the server, as when its machine hangs: the kernel still
// accepts connections, and nobody answers. It is thawed when the test ends.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { _ = s.signalAll(syscall.SIGCONT) }) // it may have ended
	if err := s.signalAll(syscall.SIGSTOP); err != nil {
		t.Fatalf("freeze PostgreSQL: %v", err)
	}
}

// Thaw continues the processes of a frozen server.
func (s *Server) Thaw(t testing.TB) {
	t.Helper()
	if err := s.signalAll(syscall.SIGCONT); err != nil {
		t.Fatalf("thaw PostgreSQL: %v", err)
	}
}

// signalAll sends a signal to the postmaster, waits until it has stopped if that is what the
// signal does, so that it starts no other process, and sends it to its children.
func (s *Server) signalAll(signal syscall.Signal) error {
	postmaster := s.PID()
	if postmaster == 0 {
		return errors.New("it is not running")
	}
	if err := syscall.Kill(postmaster, signal); err != nil {
		return fmt.Errorf("signal the postmaster: %w", err)
	}
	for deadline := time.Now().Add(patience); signal == syscall.SIGSTOP && stateOf(postmaster) != 'T'; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return errors.New("the postmaster did not stop")
		}
	}
	for _, pid := range childrenOf(postmaster) {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal a process of the server: %w", err)
		}
	}
	return nil
}

// stat returns the fields of /proc/PID/stat after the command's name: the state, the parent.
func stat(pid int) [][]byte {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil // it has ended
	}
	return bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
}

func stateOf(pid int) byte {
	if fields := stat(pid); len(fields) > 0 {
		return fields[0][0]
	}
	return 0
}

// childrenOf returns the child processes of a process.
func childrenOf(parent int) (pids []int) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil // the pattern is valid
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if fields := stat(pid); len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}
