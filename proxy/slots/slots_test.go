package slots

import (
	"sync"
	"sync/atomic"
	"testing"
)

// TestNeverMoreThanTheLimit takes and gives back slots in several goroutines at once.
func TestNeverMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 3
	var s Slots
	s.Limit(limit)
	var used, most atomic.Int64
	var group sync.WaitGroup
	for range 4 * limit {
		group.Go(func() {
			for range 2000 {
				if !s.Take() {
					continue
				}
				if n := used.Add(1); n > most.Load() {
					most.Store(n)
				}
				used.Add(-1)
				s.Give()
			}
		})
	}
	group.Wait()
	if most.Load() > limit || s.taken.Load() != 0 {
		t.Errorf("%d slots of %d were taken at once, and %d stay taken", most.Load(), limit, s.taken.Load())
	}
}
