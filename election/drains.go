package election

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// followDrains notifies the members of candidacies of the grants of other proxies that wait for their backends, until
// ctx ends. A grant itself ends every session that was not notified.
func (e *Elections) followDrains(ctx context.Context, name string, b Backend) {
	if b.FollowDrains == nil {
		return
	}
	lost := faults.NewSeries(e.log.With(zap.String("database", name)), "cannot follow the grants of other proxies", 0)
	for {
		err := b.FollowDrains(ctx, func(d fencing.Drain) {
			lost.Passed()
			e.Draining(name, d)
		})
		if ctx.Err() != nil {
			return
		}
		lost.Failed(zap.Error(err))
		select {
		case <-time.After(orderPoll):
		case <-ctx.Done():
			return
		}
	}
}

// Draining says that a grant in a database waits for registered backends.
func (e *Elections) Draining(database string, d fencing.Drain) {
	e.mu.Lock()
	r := e.mu.resources[resourceKey{database, d.Resource}]
	e.mu.Unlock()
	if r == nil {
		return
	}
	for _, m := range r.membersUpTo(d.Epoch) {
		m.EpochEnds(d)
	}
}

// membersUpTo returns the members of the candidacies that have this epoch or an older one. They may be called without a
// lock.
func (r *resource) membersUpTo(epoch fencing.Epoch) (all []fencing.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.loops {
		if had := c.Status().Epoch; had != 0 && had <= epoch {
			all = append(all, c.membersLocked()...)
		}
	}
	return all
}
