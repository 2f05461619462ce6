package netloop

import "sync"

// signal wakes a goroutine that waits, or will. It has a channel only while one does.
type signal struct {
	mu    sync.Mutex
	given bool
	wake  chan struct{} // nil if no one waits
}

// give ends the wait, or the next one if no one waits.
func (s *signal) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = true
	if s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}

// wait returns when give was called since the last wait. Only one goroutine at a time may wait.
func (s *signal) wait() {
	s.mu.Lock()
	if !s.given {
		wake := make(chan struct{})
		s.wake = wake
		s.mu.Unlock()
		<-wake
		s.mu.Lock()
	}
	s.given = false
	s.mu.Unlock()
}
