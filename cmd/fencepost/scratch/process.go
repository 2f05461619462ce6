package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/internal/child"
)

// Process is a child that is killed when this program dies. Its owner calls Stop, which
// waits for it.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
	err  error         // result of Wait; read it after done
}

// Start starts cmd in its own process group, so that a Ctrl-C in the terminal
// reaches only this program, which then ends its children in order.
func Start(name string, cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	child.EndWithParent(cmd, syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Signal sends a signal to the child.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop sends s, waits, and kills the child if it has not ended after ten seconds. It is
// not an error if the child has already ended.
func (p *Process) Stop(s syscall.Signal) error {
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
		_ = p.cmd.Process.Kill() // it may have ended at this moment
		<-p.done
		return fmt.Errorf("stop %s: it did not end within 10 s and was killed", p.name)
	}
}

// Done is closed when the child has ended; Err is then the result.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns how the child ended. It may be called when Done is closed.
func (p *Process) Err() error { return p.err }

// unprivileged returns a user to run PostgreSQL as, or nil if this program does not run
// as root. PostgreSQL refuses to run as root.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("read the ids of user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}

// Sleep returns after d, or when ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Tail returns the last lines of a file, for the text of an error.
func Tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}
