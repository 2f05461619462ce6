package workers

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/fencepost/fencepost/fencing"
)

// maxWaiting is how many connections of one worker wait to lead a resource at one time. It is above the size of usual
// pools, all of whose connections may wait. Workers without an id are distinguished by their addresses only, which many
// may have in common behind a load balancer.
const maxWaiting, maxNameless = 64, 256

// Waiting has the connections that wait to lead. A driver may leave one open that it has given up, and open
// another: pgjdbc does at its loginTimeout. The newest ones are those that someone still wants.
type Waiting struct {
	mu  sync.Mutex
	all map[waitKey][]*waiter // oldest first
}

// waitKey is what the connections that wait are counted by. Those of workers without an id count together for each
// client address and user.
type waitKey struct {
	key
	resource string
}

type waiter struct{ end context.CancelCauseFunc }

// ErrNewerWait ends the wait of the oldest connection when there are too many.
var ErrNewerWait = errors.New("newer connections of the worker wait")

// Enter adds a connection that waits until leave is called. Its context ends with ErrNewerWait if too many newer ones
// wait.
func (w *Waiting) Enter(parent context.Context, c fencing.JoinRequest) (ctx context.Context, leave func()) {
	k := waitKey{key{c.Database, c.User, c.Worker, c.Client}, c.Resource}
	if c.Nameless {
		k.worker = ""
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
	all := append(w.all[k], one)
	if len(all) > most {
		all[0].end(ErrNewerWait)
		all = slices.Delete(all, 0, 1)
	}
	w.all[k] = all
	return ctx, func() { end(nil); w.leave(k, one) }
}

func (w *Waiting) leave(k waitKey, one *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(w.all[k], func(o *waiter) bool { return o == one })
	if w.all[k] = all; len(all) == 0 {
		delete(w.all, k)
	}
}
