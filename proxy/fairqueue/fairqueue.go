// Package fairqueue bounds how many callers do something at one time, and has the others wait in turns.
package fairqueue

import (
	"context"
	"slices"
	"sync"
)

// Queue admits a bounded number of callers at a time. The keys of waiting callers take
// turns, so that many callers with one key do not delay the callers with another key.
type Queue struct {
	mu      sync.Mutex
	free    int
	turns   []string // keys of waiting callers, the next one first
	waiting map[string][]chan struct{}
}

// New makes a queue that admits as many callers at a time as there are places.
func New(places int) *Queue {
	return &Queue{free: places, waiting: map[string][]chan struct{}{}}
}

// Enter waits for a place, or until ctx ends, which it reports as an error. The caller must
// call leave to give the place back.
func (q *Queue) Enter(ctx context.Context, key string) (leave func(), err error) {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return q.leave, nil
	}
	turn := make(chan struct{})
	if len(q.waiting[key]) == 0 {
		q.turns = append(q.turns, key)
	}
	q.waiting[key] = append(q.waiting[key], turn)
	q.mu.Unlock()
	select {
	case <-turn:
		return q.leave, nil
	case <-ctx.Done():
		q.giveUp(key, turn)
		return nil, ctx.Err()
	}
}

// giveUp takes a waiting caller out of the queue, or hands on the place that it has got in
// the meantime.
func (q *Queue) giveUp(key string, turn chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	line := q.waiting[key]
	at := slices.Index(line, turn)
	switch {
	case at < 0:
		q.leaveLocked()
	case len(line) == 1:
		delete(q.waiting, key)
		q.turns = slices.DeleteFunc(q.turns, func(k string) bool { return k == key })
	default:
		q.waiting[key] = slices.Delete(line, at, at+1)
	}
}

// leave hands the place to the first caller of the next key.
func (q *Queue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaveLocked()
}

func (q *Queue) leaveLocked() {
	if len(q.turns) == 0 {
		q.free++
		return
	}
	key := q.turns[0]
	q.turns = q.turns[1:]
	line := q.waiting[key]
	close(line[0])
	if len(line) == 1 {
		delete(q.waiting, key)
		return
	}
	q.waiting[key] = line[1:]
	q.turns = append(q.turns, key)
}

// Waiting returns how many callers wait.
func (q *Queue) Waiting() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, line := range q.waiting {
		n += len(line)
	}
	return n
}
