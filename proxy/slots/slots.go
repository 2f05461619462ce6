// Package slots counts what may be in use up to a limit that can change meanwhile.
package slots

import "sync/atomic"

// Slots are slots that can be taken and given back, by any number of goroutines. The zero
// value has none.
type Slots struct{ limit, taken atomic.Int64 }

// Limit sets how many slots may be taken at one time. If more are taken already, they stay
// taken, and no other can be taken until enough were given back.
func (s *Slots) Limit(n int) { s.limit.Store(int64(n)) }

// Take takes a slot, and reports false if all are taken.
func (s *Slots) Take() bool {
	for {
		n := s.taken.Load()
		if n >= s.limit.Load() {
			return false
		}
		if s.taken.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Give gives a slot back that was taken.
func (s *Slots) Give() { s.taken.Add(-1) }
