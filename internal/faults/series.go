package faults

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// Series logs the failures of one thing that is tried again and again: the first, one for
// each interval while it keeps failing, and the success that ends them. It is safe for
// concurrent use.
type Series struct {
	log   *zap.Logger
	what  string // the message of the first line
	every time.Duration

	mu    sync.Mutex
	since time.Time // of the first failure
	told  time.Time // when the last line was written
	count int       // failures since the first; 0 if the last try succeeded
}

// NewSeries returns a series without failures. Its lines have the message what, with
// "(still)" or "(over)" after it for all but the first. every is the time between two lines;
// 0 means Interval.
func NewSeries(log *zap.Logger, what string, every time.Duration) *Series {
	if every == 0 {
		every = Interval
	}
	return &Series{log: log, what: what, every: every}
}

// Failed records a failure. The fields describe it.
func (s *Series) Failed(fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.count++
	switch {
	case s.count == 1:
		s.since, s.told = now, now
		s.log.Warn(s.what, fields...)
	case now.Sub(s.told) >= s.every:
		s.told = now
		s.log.Warn(s.what+" (still)", append(fields, s.lengthLocked(now)...)...)
	}
}

// Passed records a success, which ends the failures.
func (s *Series) Passed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		return
	}
	s.log.Info(s.what+" (over)", s.lengthLocked(time.Now())...)
	s.count = 0
}

// Now returns since when the failures have lasted, and how many there were; 0 if the last
// try succeeded.
func (s *Series) Now() (since time.Time, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.since, s.count
}

func (s *Series) lengthLocked(now time.Time) []zap.Field {
	return []zap.Field{zap.Int("failures", s.count), zap.Duration("lasted", now.Sub(s.since).Round(time.Millisecond))}
}
