package election

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// The index of an award counts within one life of the lease service, which its
// marker names, and the fence numbers the lives. If a life got its number at its
// first grant, an award of an older life that comes late could get a higher one
// than the life after it. So a candidacy bids only after the life that the
// service is in has a number, and an award of any other life is given back: each
// award that is granted was asked for, and made, after its life was numbered,
// and before a later life had begun.

// errOtherLife says that an award is of a life that had no number when the
// candidacy bid.
var errOtherLife = errors.New("the lease service has begun a new life: its award is given back, and asked for again")

// numbered returns the marker of the life that the lease service is in, as far
// as known, after that life has got its number. It waits for the first sight. The
// holder of the resource's turn calls it.
func (r *resource) numbered(ctx context.Context, fence Fence) (marker string, err error) {
	marker, known, err := r.presentLife(ctx)
	if err != nil || known {
		return marker, err
	}
	if err := fence.Number(ctx, r.provider.Source(), marker); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.numbered = marker
	return marker, nil
}

// presentLife returns the marker that was seen last, and whether its life has a
// number.
func (r *resource) presentLife(ctx context.Context) (marker string, numbered bool, err error) {
	for {
		r.mu.Lock()
		life, known, blind, news := r.mu.life, r.mu.numbered, r.mu.sightErr, r.mu.news
		r.mu.Unlock()
		switch {
		case life != "":
			return life, life == known, nil
		case blind != nil && known != "": // what it is now will show with the award
			return known, true, nil
		case blind != nil:
			return "", false, fmt.Errorf("look at the lease service: %w", blind)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return "", false, fmt.Errorf("wait for a first look at the lease: %w", ctx.Err())
		}
	}
}

// newsLocked wakes those who wait for a sight.
func (r *resource) newsLocked() {
	close(r.mu.news)
	r.mu.news = make(chan struct{})
}

// awarded notes of which life an award is.
func (r *resource) awarded(marker string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.life = marker
}

// unnumbered notes that the fence does not know the number of a life any more.
func (r *resource) unnumbered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.numbered = ""
}

// askAgainLocked gives back an award of a life that was not numbered in time.
// Whoever waits for the attempt waits for the next one.
func (c *Candidacy) askAgainLocked(err error) {
	c.log.Warn("asking for another award", zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
	c.mu.tryAt = c.r.e.cfg.Now() + jitter(minBackoff)
	c.releaseLocked(c.mu.lease, ReasonLeft)
}
