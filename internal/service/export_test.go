package service

import (
	"context"
	"time"
)

// For tests outside of the package.
const (
	WarnedFor = warnedFor
	PartlyFor = partlyFor
)

// RefusalList is the body of /v1/refusals.
type RefusalList = refusalList

// Warnings asks the databases for their warnings now.
func Warnings(s *Server, ctx context.Context) ([]string, time.Duration) {
	return s.fences.warnings(ctx)
}

// ForgetWarnings forgets those that a database gave last.
func ForgetWarnings(s *Server, database string) {
	s.fences.mu.Lock()
	defer s.fences.mu.Unlock()
	delete(s.fences.warned, database)
}
