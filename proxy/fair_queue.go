package proxy

import "sync"

// fairQueue admits a bounded number of callers at a time. The keys of waiting callers take
// turns, so that many callers with one key do not delay the callers with another key.
type fairQueue struct {
	mu      sync.Mutex
	free    int
	turns   []string // keys of waiting callers, the next one first
	waiting map[string][]chan struct{}
}

func newFairQueue(places int) *fairQueue {
	return &fairQueue{free: places, waiting: map[string][]chan struct{}{}}
}

// enter waits for a place. The caller must call leave to give it back.
func (q *fairQueue) enter(key string) (leave func()) {
	q.mu.Lock()
	if q.free > 0 {
		q.free--
		q.mu.Unlock()
		return q.leave
	}
	turn := make(chan struct{})
	if len(q.waiting[key]) == 0 {
		q.turns = append(q.turns, key)
	}
	q.waiting[key] = append(q.waiting[key], turn)
	q.mu.Unlock()
	<-turn
	return q.leave
}

// leave hands the place to the first caller of the next key.
func (q *fairQueue) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
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
