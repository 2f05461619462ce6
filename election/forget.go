package election

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// DefaultIdle is how long a resource without a candidacy is kept.
const DefaultIdle = time.Minute

// openForJoin returns the resource, opened if necessary, and keeps it from being forgotten
// until endJoin is called.
func (e *Elections) openForJoin(ctx context.Context, key resourceKey) (*resource, error) {
	for {
		r, err := e.resource(ctx, key)
		if err != nil {
			return nil, err
		}
		if e.beginJoin(r) {
			return r, nil
		} // otherwise it has just been forgotten
	}
}

func (e *Elections) beginJoin(r *resource) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.resources[r.key] != r {
		return false
	}
	r.joining++
	return true
}

func (e *Elections) endJoin(r *resource) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.joining--
}

// Dropped forgets the resources of a database that the server does not have any more, as far
// as no connection uses them. It may be called again and again, and does not block.
func (e *Elections) Dropped(database string) {
	e.forgetOrders(database)
	for _, r := range e.resourcesOf(database) {
		r.endDeserted()
		poke(r.watcher.dropped)
	}
}

// endDeserted ends the candidacies without members, whose database is gone. A release that fails
// is not tried again.
func (r *resource) endDeserted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.mu.loops {
		deserted := len(c.members) == 0
		c.deserted.Store(deserted)
		if deserted {
			c.endLocked()
		}
	}
}

// forget removes a resource that has no candidacy and that no one is joining. It keeps
// only the highest observed epoch, because a lower one would mean that the database was
// restored. It reports whether it removed the resource; the watch then ends.
func (e *Elections) forget(r *resource) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.joining > 0 || len(r.mu.loops) > 0 {
		return false
	}
	delete(e.mu.resources, r.key)
	e.mu.usage.forget(r.key)
	if r.mu.highestObserved > 0 {
		e.mu.highestObserved[r.key] = observedEpoch{r.mu.fence.Database(), r.mu.highestObserved}
	}
	if p, ok := r.provider.(interface{ Forget(resource string) }); ok {
		p.Forget(r.key.name)
	}
	r.log.Debug("resource forgotten: not in use", zap.Int64("epoch", int64(r.mu.highestObserved)))
	e.cfg.Observe(Event{Kind: EventForgotten, Database: r.key.database, Resource: r.key.name})
	return true
}
