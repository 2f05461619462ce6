package protocol

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/fencepost/fencepost/fencing"
)

// ErrBug says that the machine panicked over what a peer sent.
var ErrBug = errors.New("bug in the proxy")

// BugRefusal is what the client is told; the log has the rest.
var BugRefusal = &fencing.Refusal{SQLState: "XX000", Message: "Fencepost ran into a bug, see its log"}

// caught turns a panic of the machine into an error, deferred by those who
// enter it: whatever a peer found ends its own session and no other.
func caught(p interface{ Reset([]byte) }, err *error) {
	if r := recover(); r != nil {
		p.Reset(nil) // it may be half made
		*err = fmt.Errorf("%w: %v: %s", ErrBug, r, debug.Stack())
	}
}
