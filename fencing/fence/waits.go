package fence

import (
	"context"
	"slices"
	"time"
)

// unblockedEvery is the time between two looks at what blocked a grant that was given up.
const unblockedEvery = time.Second

// AwaitUnblocked implements election.Fence.
func (f *Fence) AwaitUnblocked(ctx context.Context) error {
	defer f.db.reports.startWatch(f.resource, f.db.cfg.Blocked)()
	w, was := &blockers{fence: f, log: f.db.log}, f.db.reports.kept(f.resource)
	tick := time.NewTicker(unblockedEvery)
	defer tick.Stop()
	for known := len(was) > 0; ; known = true {
		holders, err := f.remainingBlockers(ctx, was)
		var left []string
		for _, h := range holders {
			if remedy := h.remedy(); remedy != "" {
				left = append(left, remedy)
			}
		}
		switch {
		case ctx.Err() != nil: // another grant may have begun, which reports what blocks it
		case !known && len(holders) == 0: // it is not known what to look for
			<-ctx.Done()
		case err != nil: // the next grant shows what is wrong
		case len(holders) == 0:
			w.report(nil)
			return nil
		case len(left) > 0:
			w.report(left)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// remainingBlockers returns what is left of the transactions that have blocked a grant, with superusers' backends that
// are registered. If it was the standbys, it returns an error until they confirm.
func (f *Fence) remainingBlockers(ctx context.Context, was []string) ([]holder, error) {
	if slices.Contains(was, standbys) {
		_, err := f.db.confirms.ask(ctx, f.id)
		return nil, err
	}
	return f.db.holders(ctx, leftSQL, was, f.id)
}
