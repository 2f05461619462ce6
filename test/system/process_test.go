package system

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/fencepost/fencepost/internal/child"
)

// process is a child that is killed when this program dies. Its goroutine waits for it.
type process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	code int           // exit code, -1 if a signal ended it; read it after done
}

// startProcess runs cmd, and kills it at the end of the test if it is still running.
func startProcess(t testing.TB, name string, cmd *exec.Cmd) *process {
	t.Helper()
	child.EndWithParent(cmd, syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p := &process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // ProcessState says how it ended
		p.code = cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended long ago
		<-p.done
	})
	return p
}

// signal sends s. It is not an error if the process has ended.
func (p *process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("send %v to %s: %v", s, p.name, err)
	}
}

// freeze stops the process, and returns when all of its threads have stopped.
func (p *process) freeze(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	eventually(t, patience, p.name+" to be frozen", func() bool { return p.ended() || p.frozen() })
}

// thaw continues a frozen process.
func (p *process) thaw(t testing.TB) { t.Helper(); p.signal(t, syscall.SIGCONT) }

// kill ends the process like a crash, and waits until it has ended.
func (p *process) kill(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// frozen reports whether every thread of the process is stopped.
func (p *process) frozen() bool {
	tasks := fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		text, err := os.ReadFile(tasks + "/" + entry.Name() + "/stat")
		if err != nil {
			return false
		}
		// The state follows the command's name, which is in parentheses.
		_, rest, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(rest, "T") {
			return false
		}
	}
	return true
}
