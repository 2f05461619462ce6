package workers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

// TestWhoseConnectionsWaitTogether: those of a worker, and those without an id of one address and user, of which there may
// be more.
func TestWhoseConnectionsWaitTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		nameless bool
		most     int
	}{{false, maxWaiting}, {true, maxNameless}} {
		var w Waiting
		var oldest, second context.Context
		enter := func(resource, worker string) context.Context {
			ctx, leave := w.Enter(t.Context(), fencing.JoinRequest{Database: "db", User: "u", Resource: resource, Worker: worker, Nameless: c.nameless})
			t.Cleanup(leave)
			return ctx
		}
		worker := func(n int) string {
			if c.nameless {
				return fmt.Sprint("w", n)
			}
			return "w"
		}
		oldest, second = enter("r", worker(0)), enter("r", worker(1))
		other := enter("other", worker(0))
		for n := range c.most - 2 {
			enter("r", worker(n+2))
		}
		if oldest.Err() != nil {
			t.Errorf("nameless %t: %d do not have room", c.nameless, c.most)
		}
		enter("r", worker(c.most))
		if !errors.Is(context.Cause(oldest), ErrNewerWait) || second.Err() != nil || other.Err() != nil {
			t.Errorf("nameless %t: with one more, the oldest ends with %v, the second with %v, that of another resource with %v",
				c.nameless, context.Cause(oldest), second.Err(), other.Err())
		}
	}
}
