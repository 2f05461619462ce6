package election

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
)

// reachPatience is how much longer than a TTL a lease is kept while the database does not answer. It is longer
// than one round of reading the orders and asking for an answer, so that a server which is slow for a moment costs
// no one the lead.
const reachPatience = 15 * time.Second

// errUnreached is why a candidacy gives its lease back, or does not campaign.
var errUnreached = errors.New("the database does not answer Fencepost")

// followReach passes on to the resources of a database whether it answers this proxy. The lease service does not know
// that: it would confirm the lease of a leader which cannot write, and no other proxy could take over. failed is why
// the orders could not be read, nil if they were; it may be something else, such as a lock. answered is when the
// database last answered, as a reading of CLOCK_BOOTTIME; followReach returns that as it is now.
func (e *Elections) followReach(ctx context.Context, name string, b Backend, failed error, answered time.Duration) time.Duration {
	silent := time.Duration(0)
	if failed != nil && !doesAnswer(ctx, b, failed) {
		silent = e.cfg.Now() - answered
	} else {
		answered = e.cfg.Now()
	}
	if ctx.Err() != nil {
		return answered
	}
	for _, r := range e.resourcesOf(name) {
		r.followReach(silent)
	}
	return answered
}

// doesAnswer reports whether a database answers. One that cannot be asked counts as one that does.
func doesAnswer(ctx context.Context, b Backend, failed error) bool {
	if b.Answers == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 5*orderPoll)
	defer cancel()
	return b.Answers(ctx, failed)
}

// followReach records for how long the database has not answered, 0 if it does. Where workers bring tokens, whoever
// has the highest one leads, and no one else could take a lease.
func (r *resource) followReach(silent time.Duration) {
	unreached := silent > 0 && r.tokenProvider == nil && silent > r.settings().TTL+reachPatience
	r.mu.Lock()
	changed := r.mu.unreached != unreached
	r.mu.unreached = unreached
	r.mu.Unlock()
	if !changed {
		return
	}
	if unreached {
		r.log.Warn("the database does not answer: until it does, no worker of this proxy keeps or takes the lease", zap.Duration("silent", silent))
	} else {
		r.log.Info("the database answers again")
	}
	r.pokeAll()
}

// reached forgets what was found when the orders were last read.
func (r *resource) reached() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.unreached = false
}
