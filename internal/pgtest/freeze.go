package pgtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Freeze stops all processes of the server, so that it accepts connections and answers
// nothing, until thaw is called, at the latest when the test ends. It needs /proc.
func (s *Server) Freeze(t testing.TB) (thaw func()) {
	t.Helper()
	var stopped []int
	stop := func(pid int) {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err == nil { // otherwise it has just ended
			stopped = append(stopped, pid)
		}
	}
	thaw = sync.OnceFunc(func() {
		for _, pid := range stopped {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(thaw)
	main := s.PID()
	stop(main) // first, so that no process is added
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", main, main))
	if err != nil {
		t.Fatalf("list the processes of the server: %v", err)
	}
	for _, field := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("list the processes of the server: %v", err)
		}
		stop(pid)
	}
	if len(stopped) < 2 {
		t.Fatalf("only the processes %v were stopped", stopped)
	}
	return thaw
}
