package pgtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// dirPrefix begins the names of servers' directories; the process id follows.
const dirPrefix = "fencepost-pg-"

const (
	memory = "/dev/shm"
	tmpfs  = 0x01021994
	plenty = 4 << 30 // bytes free
)

// scratch is where servers keep what they need to keep for no longer than a
// test: in memory where there is plenty, unless TMPDIR says otherwise, for making
// and growing files is most of the work of a server that tests use. "" is the
// usual place.
func scratch() string {
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < plenty {
		return ""
	}
	sweep()
	return memory
}

// sweep removes from memory what test processes left that were killed.
var sweep = sync.OnceFunc(func() {
	dirs, _ := filepath.Glob(filepath.Join(memory, dirPrefix+"*"))
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == syscall.ESRCH {
			_ = os.RemoveAll(dir)
		}
	}
})
