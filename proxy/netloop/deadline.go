package netloop

import (
	"sync"
	"time"
)

// deadline is a moment that can be waited for, and moved meanwhile.
type deadline struct {
	mu      sync.Mutex
	over    chan struct{} // closed when the moment has passed
	timer   *time.Timer
	setting int // counts the moves, so that a late timer ends nothing
}

// passed returns a channel that is closed when the moment has passed.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.channel()
}

func (d *deadline) channel() chan struct{} {
	if d.over == nil {
		d.over = make(chan struct{})
	}
	return d.over
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
	select {
	case <-d.channel():
		d.over = make(chan struct{})
	default:
	}
	if t.IsZero() {
		return
	}
	wait := time.Until(t)
	if wait <= 0 {
		close(d.over)
		return
	}
	setting := d.setting
	d.timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.setting == setting {
			close(d.over)
		}
	})
}

// hasPassed reports whether the moment has passed.
func (d *deadline) hasPassed() bool {
	select {
	case <-d.passed():
		return true
	default:
		return false
	}
}
