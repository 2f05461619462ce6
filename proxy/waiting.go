package proxy

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/fencepost/fencepost/fencing"
)

// maxWaiting is how many connections of one worker wait to lead a resource at one time. It is above the size of usual
// pools, all of whose connections may wait. Workers without an id are distinguished by their addresses only, which many may
// have in common behind a load balancer.
const maxWaiting, maxNameless = 64, 256

// waiting has the connections that wait to lead. A driver may leave one open that it has given up, and open
// another: pgjdbc does at its loginTimeout. The newest ones are those that someone still wants.
type waiting struct {
	mu  sync.Mutex
	all map[waitKey][]*waiter // oldest first
}

// waitKey is what the connections that wait are counted by. Those of workers without an id count together for each
// client address and user.
type waitKey struct {
	crewKey
	resource string
}

type waiter struct{ end context.CancelCauseFunc }

// errNewerWait ends the wait of the oldest connection when there are too many.
var errNewerWait = errors.New("newer connections of the worker wait")

// enter adds a connection that waits until leave is called. Its context ends with errNewerWait if too many newer ones
// wait.
func (w *waiting) enter(parent context.Context, c fencing.JoinRequest) (ctx context.Context, leave func()) {
	key := waitKey{crewKey{c.Database, c.User, c.Worker, c.Client}, c.Resource}
	if c.Nameless {
		key.worker = ""
	}
	most := maxWaiting
	if c.Nameless {
		most = maxNameless
	}
	ctx, end := context.WithCancelCause(parent)
	one := &waiter{end}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[waitKey][]*waiter{}
	}
	all := append(w.all[key], one)
	if len(all) > most {
		all[0].end(errNewerWait)
		all = slices.Delete(all, 0, 1)
	}
	w.all[key] = all
	return ctx, func() { end(nil); w.leave(key, one) }
}

func (w *waiting) leave(key waitKey, one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.all[key], func(o *waiter) bool { return o == one })
	if w.all[key] = all; len(all) == 0 {
		delete(w.all, key)
	}
}
