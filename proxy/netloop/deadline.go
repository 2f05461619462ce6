package netloop

import (
	"sync"
	"time"
)

// deadline is a moment that can be waited for, and moved meanwhile.
type deadline struct {
	mu      sync.Mutex
	past    bool          // the moment has passed
	over    chan struct{} // closed when it has passed; nil until someone waits for that
	timer   *time.Timer
	setting int // counts the moves, so that a late timer ends nothing
}

// passed returns a channel that is closed when the moment has passed.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over == nil {
		d.over = make(chan struct{})
		if d.past {
			close(d.over)
		}
	}
	return d.over
}

// passLocked says that the moment has passed.
func (d *deadline) passLocked() {
	d.past = true
	if d.over != nil {
		close(d.over)
	}
}

// set moves the moment to t; the zero time means never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setting++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.past {
		d.past, d.over = false, nil
	}
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		d.passLocked()
		return
	}
	setting := d.setting
	d.timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.setting == setting {
			d.passLocked()
		}
	})
}

// hasPassed reports whether the moment has passed.
func (d *deadline) hasPassed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}
