// Package servertest runs the lease services that tests need: it finds their programs, starts them, and freezes and
// kills them. They die with the test process.
package servertest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/child"
)

// Process is a server. It can be stopped and started again.
type Process struct {
	Name     string   // in messages; in lower case, the target of make that builds or installs the program
	Program  string   // the name of the program
	Variable string   // the environment variable that may have its path
	Args     []string // of the program
	Env      []string // in addition to that of the tests
	Log      *os.File // gets what it writes; the owner of the Process closes it

	cmd *exec.Cmd // nil while it is stopped
}

// Launch starts the server, unless it runs.
func (p *Process) Launch() error {
	if p.cmd != nil {
		return nil
	}
	path, err := find(p.Variable, p.Program, strings.ToLower(p.Name))
	if err != nil {
		return err
	}
	cmd := exec.Command(path, p.Args...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	child.OwnSession(cmd, syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	p.cmd = cmd
	return nil
}

// Await returns when the server is ready. Its error has the end of the log.
func (p *Process) Await(patience time.Duration, ready func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := ready()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not become ready: %w; its log ends with:\n%s", p.Name, err, p.Tail())
		}
		var status syscall.WaitStatus
		if pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WNOHANG, nil); err == nil && pid == p.cmd.Process.Pid {
			p.cmd = nil
			return fmt.Errorf("%s ended at once; its log ends with:\n%s", p.Name, p.Tail())
		}
	}
}

// Pause freezes the server, and returns when it has stopped: connections stay open, but it does not
// respond. On a busy machine its threads run on for a while after the signal.
func (p *Process) Pause(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	if err != nil || !status.Stopped() {
		t.Fatalf("pause %s: process %d, status %v: %v", p.Name, pid, status, err)
	}
}

// Continue ends a Pause.
func (p *Process) Continue(t testing.TB) { t.Helper(); p.signal(t, syscall.SIGCONT) }

func (p *Process) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("send %v to %s: %v", sig, p.Name, err)
	}
}

// Kill ends the server as a crash does, if it runs. Its data stay.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // always "killed", as intended
	p.cmd = nil
}

// Tail returns the end of the log.
func (p *Process) Tail() string {
	end, err := p.Log.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	text := make([]byte, 4096)
	n, _ := p.Log.ReadAt(text, max(0, end-int64(len(text))))
	return string(text[:n])
}

// Shared is what all tests of a process share: a server, or a cluster of them.
type Shared[S interface{ Stop() }] struct {
	once   sync.Once
	server S
	err    error
	runs   bool
}

// Get returns it, started by the first call. It fails the test if that has failed.
func (s *Shared[S]) Get(t testing.TB, start func() (S, error)) S {
	t.Helper()
	s.once.Do(func() {
		s.server, s.err = start()
		s.runs = s.err == nil
	})
	if s.err != nil {
		t.Fatalf("start what the tests share: %v", s.err)
	}
	return s.server
}

// Stop ends it, if it was started. It is called after the last test of the process.
func (s *Shared[S]) Stop() {
	if s.runs {
		s.server.Stop()
	}
}
