package drivers

import (
	"bufio"
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

// process is a child whose two outputs are read line by line to their end. It is killed
// when this program dies.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and its output has been read

	mu struct {
		sync.Mutex
		text strings.Builder
	}
}

// start runs cmd and calls line with each line that it prints, in order. It kills the
// process at the end of the test if it is still running.
func start(t testing.TB, cmd *exec.Cmd, line func(string)) *process {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatalf("create a pipe: %v", err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	child.EndWithParent(cmd, syscall.SIGKILL)
	err = cmd.Start()
	_ = write.Close() // the child has its own
	if err != nil {
		_ = read.Close()
		t.Fatalf("start %v (`make drivers` installs what is missing): %v", cmd.Args, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go p.collect(read, line)
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended long ago
		<-p.done
	})
	return p
}

// collect reads everything that the process prints, and then waits until it has ended.
func (p *process) collect(from io.ReadCloser, line func(string)) {
	defer close(p.done)
	in := bufio.NewScanner(from)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		p.mu.Lock()
		p.mu.text.WriteString(in.Text() + "\n")
		p.mu.Unlock()
		line(in.Text())
	}
	_ = from.Close()
	_ = p.cmd.Wait() // ProcessState says how it ended
}

// wait waits until the process has ended, and returns its exit code.
func (p *process) wait(t testing.TB) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(2 * patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		t.Errorf("%v did not end within %s; it printed:\n%s", p.cmd.Args, 2*patience, tail(p.text()))
	}
	return p.cmd.ProcessState.ExitCode()
}

// text returns everything that the process has printed so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.text.String()
}

// tail returns the end of a long text.
func tail(text string) string {
	const most = 4000
	if len(text) > most {
		return "..." + text[len(text)-most:]
	}
	return text
}
