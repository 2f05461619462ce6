package scratch

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/internal/child"
)

// Process is a child that is killed when this program dies. Its owner calls Stop, which
// waits for it.
type Process = child.Process

// Start starts cmd in its own process group, so that a Ctrl-C in the terminal
// reaches only this program, which then ends its children in order.
func Start(name string, cmd *exec.Cmd) (*Process, error) {
	child.EndWithParent(cmd, syscall.SIGKILL)
	cmd.SysProcAttr.Setpgid = true
	return child.Start(name, cmd)
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
