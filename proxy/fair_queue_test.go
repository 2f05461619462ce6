package proxy

import (
	"slices"
	"testing"
)

// TestFairQueueTakesTurnsOfKeys: many callers of one key delay another key by one
// of them.
func TestFairQueueTakesTurnsOfKeys(t *testing.T) {
	t.Parallel()
	q := newFairQueue(1)
	leave := q.enter("many")
	let := make(chan string)
	enter := func(key string, waiting int) {
		go func() {
			leave := q.enter(key)
			let <- key
			leave()
		}()
		for {
			q.mu.Lock()
			n := 0
			for _, line := range q.waiting {
				n += len(line)
			}
			q.mu.Unlock()
			if n == waiting {
				return
			}
		}
	}
	for i := range 5 {
		enter("many", i+1)
	}
	enter("one", 6)
	enter("other", 7)
	leave()
	var got []string
	for range 7 {
		got = append(got, <-let)
	}
	if want := []string{"many", "one", "other", "many", "many", "many", "many"}; !slices.Equal(got, want) {
		t.Errorf("they are let in as %q, want %q", got, want)
	}
	leave = q.enter("again")
	leave()
	if q.free != 1 || len(q.waiting) != 0 || len(q.turns) != 0 {
		t.Errorf("%d places are free, %d keys wait in %d turns at the end", q.free, len(q.waiting), len(q.turns))
	}
}
