package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"

	"github.com/fencepost/fencepost/internal/child"
)

// process is one running postmaster. Its goroutine starts it, waits for it, and keeps
// its OS thread meanwhile, because the parent-death signal is sent when the thread that
// started the child ends, not the process.
type process struct {
	pid  int
	done chan struct{} // closed when the postmaster has ended
}

// startProcess runs the command until it ends. The server dies with this process: it
// gets SIGQUIT, which is an immediate shutdown.
func startProcess(cmd *exec.Cmd) (*process, error) {
	child.OwnSession(cmd, syscall.SIGQUIT)
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // the server's log says how it ended
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// account returns the unprivileged user that servers run as, because they refuse to run
// as root. It is nil if the tests themselves are unprivileged.
func account() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("read the ids of user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("running as root, and there is no user postgres or nobody to run the server as")
}
