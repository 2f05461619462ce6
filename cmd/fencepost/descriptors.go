package main

import (
	"fmt"
	"syscall"

	"go.uber.org/zap"
)

// otherDescriptors is about how many descriptors a proxy needs in addition to its
// clients' and their server connections: for listeners, the connections of the control
// role and to the lease service, and a log.
const otherDescriptors = 64

// descriptorsFor returns how many descriptors a proxy with that many clients may need:
// one for each side of a connection, and the others.
func descriptorsFor(connections int) uint64 {
	return 2*uint64(connections) + otherDescriptors
}

// warnOfFewDescriptors warns if the process may open too few files for
// limits.max_connections. Connections above the limit then fail, and grants may fail
// too.
func warnOfFewDescriptors(log *zap.Logger, connections int) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if want := descriptorsFor(connections); limit.Cur < want {
		log.Warn("the limit of open files is too low for limits.max_connections: raise the limit (ulimit -n, LimitNOFILE) or lower the setting",
			zap.Uint64("allowed", limit.Cur), zap.Uint64("wanted", want), zap.Int("max_connections", connections))
	}
	return nil
}
