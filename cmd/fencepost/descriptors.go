package main

import (
	"fmt"
	"syscall"

	"go.uber.org/zap"
)

// otherDescriptors is about what a proxy holds open besides its clients' and
// their server connections: listeners, the connections of the control role and
// to the lease service, a log.
const otherDescriptors = 64

// descriptorsFor returns how many files a proxy with so many clients may have
// open at one time: a connection to each side.
func descriptorsFor(connections int) uint64 {
	return 2*uint64(connections) + otherDescriptors
}

// warnOfFewDescriptors says when the process may open too few files for the
// connections it is to accept. Those above fail then, and grants may.
func warnOfFewDescriptors(log *zap.Logger, connections int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("ask for the limit of open files: %w", err)
	}
	if want := descriptorsFor(connections); limit.Cur < want {
		log.Warn("too few open files are allowed for limits.max_connections: raise the limit (ulimit -n, LimitNOFILE) or lower the setting",
			zap.Uint64("allowed", limit.Cur), zap.Uint64("wanted", want), zap.Int("max_connections", connections))
	}
	return nil
}
