package proxy

import (
	"context"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// fatal relays the server's FATAL error. If the server ended the backend
// because another worker was granted an epoch, the client is told that instead.
func (x *session) fatal(ctx context.Context, e *protocol.Event) {
	_ = x.server.Close()
	if fencing.Checking && x.cand != nil && e.Err.Code == "57P01" && x.advanced(ctx) {
		x.superseded.Store(true)
		x.serverEnded()
		return
	}
	x.mu.Lock()
	first := !x.goodbye
	x.goodbye = true
	x.mu.Unlock()
	if first {
		_ = x.toClient(e.Message)
	}
	x.hangUp()
}

// advancedAgain is how long a question for a grant waits before the next.
const advancedAgain = 50 * time.Millisecond

// advanced reports whether the backend was ended for a grant to somebody else.
// While the worker has an epoch and its lease is not confirmed, such a grant may be
// on its way still: it ended the backend in order to get its lock. A worker without
// an epoch is nobody's predecessor.
func (x *session) advanced(ctx context.Context) bool {
	if x.cand.Status().Epoch == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	for !x.cand.Advanced(ctx) {
		if x.cand.Status().CanWrite() {
			return false // an operator, most likely
		}
		select {
		case <-time.After(advancedAgain):
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// serverEnded follows the end of the server's connection. A superseded client
// that waits for a reply is told now, any other at its next use; all else ends
// with the server.
func (x *session) serverEnded() {
	superseded := x.superseded.Load()
	x.mu.Lock()
	wait := superseded && x.m.Quiet()
	x.mu.Unlock()
	switch {
	case wait: // the other pump answers the client's next bytes
	case superseded:
		x.mu.Lock()
		text, write := x.m.InFlight()
		x.mu.Unlock()
		x.saySuperseded(text, write)
		x.hangUp()
	default:
		x.hangUp()
	}
}
