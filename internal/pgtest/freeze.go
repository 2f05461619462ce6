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

// Freeze stops all processes of the server, as when its machine hangs: the kernel still
// accepts connections, and no one answers. It is thawed when the test ends.
func (s *Server) Freeze(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { _ = s.signalAll(syscall.SIGCONT) }) // it may have ended
	if err := s.signalAll(syscall.SIGSTOP); err != nil {
		t.Fatalf("freeze PostgreSQL: %v", err)
	}
}

// Frozen reports whether the server's processes are stopped.
func (s *Server) Frozen() bool { return stateOf(s.PID()) == 'T' }

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
