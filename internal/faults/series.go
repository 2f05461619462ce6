package faults

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// Series logs the failures of one thing that is tried again and again: the first, one for
// each interval while it keeps failing, and the success that ends them. If it fails and works by turns, the
// log has at most mostTurns beginnings in each interval. It is safe for concurrent use.
type Series struct {
	log   *zap.Logger
	what  string // the message of the first line
	every time.Duration

	mu     sync.Mutex
	since  time.Time // of the first failure
	logged time.Time // when the last line was written
	count  int       // failures since the first; 0 if the last try succeeded

	turns    int       // beginnings that were logged since from
	from     time.Time // when the interval began in which turns are counted
	unlogged int       // beginnings that were not logged since the last one that was
	quiet    bool      // the beginning was not logged, nor anything since
}

// mostTurns bounds the beginnings that are logged in one interval.
const mostTurns = 5

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
		s.since = now
		if s.quiet = !s.mayLogLocked(now); s.quiet {
			s.unlogged++
			return
		}
		if s.logged = now; s.unlogged > 0 {
			fields = append(fields, zap.Int("unlogged", s.unlogged))
			s.unlogged = 0
		}
		s.log.Warn(s.what, fields...)
	case now.Sub(s.logged) >= s.every:
		s.logged, s.quiet = now, false
		s.log.Warn(s.what+" (still)", append(fields, s.lengthLocked(now)...)...)
	}
}

// mayLogLocked reports whether a beginning is to be logged.
func (s *Series) mayLogLocked(now time.Time) bool {
	if now.Sub(s.from) >= s.every {
		s.from, s.turns = now, 0
	}
	s.turns++
	return s.turns <= mostTurns
}

// Passed records a success, which ends the failures.
func (s *Series) Passed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == 0 {
		return
	}
	if !s.quiet {
		s.log.Info(s.what+" (over)", s.lengthLocked(time.Now())...)
	}
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
