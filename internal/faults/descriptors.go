package faults

import (
	"errors"
	"syscall"
)

// MoreDescriptors says what to do about a NoDescriptor.
const MoreDescriptors = "Raise the limit of Fencepost's process (ulimit -n, or LimitNOFILE of systemd), or lower limits.max_connections: each connection needs two."

// NoDescriptor reports whether err says that this process, or the machine, has no file descriptor left.
func NoDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
