package fairqueue

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
)

// TestQueueTakesTurnsOfKeys: many callers of one key delay another key by one
// of them.
func TestQueueTakesTurnsOfKeys(t *testing.T) {
	t.Parallel()
	q := New(1)
	leave := mustEnter(t, q, "many")
	let := make(chan string)
	enter := func(key string, waiting int) {
		go func() {
			leave := mustEnter(t, q, key)
			let <- key
			leave()
		}()
		awaitLength(q, waiting)
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
	leave = mustEnter(t, q, "again")
	leave()
	if q.free != 1 || len(q.waiting) != 0 || len(q.turns) != 0 {
		t.Errorf("%d places are free, %d keys wait in %d turns at the end", q.free, len(q.waiting), len(q.turns))
	}
}

// TestQueueForgetsWhoGivesUp: a caller that gives up leaves the turns of the others as
// they are, and hands on the place that it may just have got.
func TestQueueForgetsWhoGivesUp(t *testing.T) {
	t.Parallel()
	q := New(1)
	leave := mustEnter(t, q, "first")
	gone := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	for i, key := range []string{"many", "many", "one"} {
		go func() {
			_, err := q.Enter(ctx, key)
			gone <- err
		}()
		awaitLength(q, i+1)
	}
	let := make(chan string)
	go func() {
		leave := mustEnter(t, q, "many")
		let <- "many"
		leave()
	}()
	awaitLength(q, 4)
	cancel()
	for range 3 {
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up got %v", err)
		}
	}
	leave()
	<-let
	q.giveUp("late", make(chan struct{})) // as if it had been given the place
	if q.free != 2 || len(q.waiting) != 0 || len(q.turns) != 0 {
		t.Errorf("%d places are free, %d keys wait in %d turns at the end", q.free, len(q.waiting), len(q.turns))
	}
}

func mustEnter(t *testing.T, q *Queue, key string) (leave func()) {
	leave, err := q.Enter(t.Context(), key)
	if err != nil {
		t.Error(err)
		return func() {}
	}
	return leave
}

// awaitLength returns when n callers wait.
func awaitLength(q *Queue, n int) {
	for q.Waiting() != n {
		runtime.Gosched()
	}
}
