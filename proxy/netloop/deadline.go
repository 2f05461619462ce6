package netloop

import (
	"sync"
	"time"
)

// deadline is a moment that can be moved before it has passed, and after.
type deadline struct {
	mu      sync.Mutex
	past    bool // the moment has passed
	timer   *time.Timer
	setting int // counts the moves, so that a late timer ends nothing
}

// set moves the moment to t, and calls passed when it has passed, unless it is moved again before. The zero time
// means never.
func (d *deadline) set(t time.Time, passed func()) {
	if d.move(t, passed) {
		passed()
	}
}

// move is set, but reports whether the moment has passed already.
func (d *deadline) move(t time.Time, passed func()) (already bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setting++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	wait := time.Until(t)
	d.past = !t.IsZero() && wait <= 0
	if t.IsZero() || d.past {
		return d.past
	}
	setting := d.setting
	d.timer = time.AfterFunc(wait, func() {
		if d.passes(setting) {
			passed()
		}
	})
	return false
}

// passes follows the timer of a move. It reports false if that was not the last one.
func (d *deadline) passes(setting int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.setting != setting {
		return false
	}
	d.past, d.timer = true, nil
	return true
}

// hasPassed reports whether the moment has passed.
func (d *deadline) hasPassed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}
