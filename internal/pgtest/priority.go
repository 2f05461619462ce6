package pgtest

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Yield lets all other processes have the processors first, for this process and those that it starts. Packages
// whose tests need no more than time call it before Main, so that the tests of other packages, which run beside
// them and have leases to renew, are not starved.
func Yield() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return // not on Linux
	}
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, 10) // the thread may have ended
		}
	}
}
