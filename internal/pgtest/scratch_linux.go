package pgtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// dirPrefix is the prefix of servers' directory names; the process id follows.
const dirPrefix = "fencepost-pg-"

const (
	memory = "/dev/shm"
	tmpfs  = 0x01021994
	plenty = 4 << 30 // free bytes
)

// scratch returns the directory for servers' data, which is needed no longer than the
// test: in memory if there is enough and TMPDIR is not set, because creating and
// extending files is most of the work of a test server. "" is the default directory.
func scratch() string {
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(memory, &fs) != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < plenty {
		return ""
	}
	sweep()
	return memory
}

// sweep removes the directories that killed test processes left in memory.
var sweep = sync.OnceFunc(func() {
	dirs, _ := filepath.Glob(filepath.Join(memory, dirPrefix+"*"))
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == syscall.ESRCH {
			_ = os.RemoveAll(dir)
		}
	}
})
