package fence

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// turns bounds how many grants of one database wait in the server at once. Each
// occupies a connection while it waits. The queue is first in, first out.
type turns struct {
	mu      sync.Mutex
	free    int
	queue   []chan struct{} // one per waiting grant; closed when its turn comes
	leaving int             // how many holders of a turn have agreed to give it up
}

// take waits for a turn.
func (t *turns) take(ctx context.Context) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	t.queue = append(t.queue, mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, mine); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	} else {
		t.passLocked() // the turn came at the same moment: pass it on
	}
	return fmt.Errorf("wait for the turn of a grant: %w", context.Cause(ctx))
}

// yield reports whether the caller, which has a turn, should give it to a waiting
// grant.
func (t *turns) yield() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) <= t.leaving {
		return false
	}
	t.leaving++
	return true
}

// give ends a turn. yielded must be true if yield returned true.
func (t *turns) give(yielded bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if yielded {
		t.leaving--
	}
	t.passLocked()
}

func (t *turns) passLocked() {
	if len(t.queue) == 0 {
		t.free++
		return
	}
	close(t.queue[0])
	t.queue = t.queue[1:]
}
