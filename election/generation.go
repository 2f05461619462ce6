package election

import (
	"context"
	"fmt"
)

// The index of an award counts within one instance of the lease service. The instance
// id identifies the instance, and the fence numbers the instances. If an instance got
// its number at its first grant, a late award of an older instance could get a higher
// number than its successor. So a candidacy asks for a lease only after the current
// instance has been numbered, and releases an award of any other instance. Each award
// that is granted was therefore requested, and made, after its instance was numbered
// and before a later instance began.

// numbered makes sure that the current instance of the lease service, as far as known,
// has a number, and returns the instance's id. It waits for the first observation. The
// candidacy that holds the resource's turn calls it.
func (r *resource) numbered(ctx context.Context, fence Fence) (instanceID string, err error) {
	instanceID, known, err := r.currentInstance(ctx)
	if err != nil || known {
		return instanceID, err
	}
	if err := fence.Number(ctx, r.provider.Source(), instanceID); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.numbered = instanceID
	return instanceID, nil
}

// currentInstance returns the instance id that was last observed, and whether it has a
// number.
func (r *resource) currentInstance(ctx context.Context) (instanceID string, numbered bool, err error) {
	for {
		r.mu.Lock()
		current, known, blind, news := r.mu.instanceID, r.mu.numbered, r.mu.watchErr, r.mu.updated
		r.mu.Unlock()
		switch {
		case current != "":
			return current, current == known, nil
		case blind != nil && known != "": // the award will show whether it is still current
			return known, true, nil
		case blind != nil:
			return "", false, fmt.Errorf("observe the lease: %w", blind)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return "", false, fmt.Errorf("wait for a first observation of the lease: %w", ctx.Err())
		}
	}
}
