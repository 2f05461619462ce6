package service

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/upstream"
)

// TestAFaultOfTheUpstreamEndsWhenItIsReached: /readyz must not say at once that Postgres is
// reached, and from an earlier look that it is not.
func TestAFaultOfTheUpstreamEndsWhenItIsReached(t *testing.T) {
	t.Parallel()
	one, err := upstream.One(upstream.Host{Address: pgtest.Shared(t).Addr()})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{upstream: one, faults: faults.NewRegister(zap.NewNop(), 0)}
	s.faults.Report(faults.InServer, &faults.Fault{Kind: faults.Upstream, Problem: "nobody answers"})
	if err := s.reachUpstream(t.Context()); err != nil {
		t.Fatal(err)
	}
	if lasting := s.faults.Active(); len(lasting) > 0 {
		t.Errorf("it was reached, and these faults last: %+v", lasting)
	}
}

// TestReadinessAsksOneAtATime checks that concurrent and subsequent callers get the
// same result.
func TestReadinessAsksOneAtATime(t *testing.T) {
	t.Parallel()
	var r remembered[int]
	asked, release := make(chan struct{}), make(chan struct{})
	n := 0
	ask := func(ctx context.Context) (int, time.Duration) {
		n++
		asked <- struct{}{}
		<-release
		if ctx.Err() != nil {
			t.Error("the computation ended with the caller that started it")
		}
		return n, time.Hour
	}
	gone, leave := context.WithCancel(t.Context())
	answers := make(chan int, 10)
	go func() { answers <- r.get(gone, ask) }()
	<-asked
	leave()
	for range cap(answers) - 1 {
		go func() { answers <- r.get(t.Context(), ask) }()
	}
	close(release)
	for range cap(answers) {
		if got := <-answers; got != 1 {
			t.Errorf("answer %d, want the first one", got)
		}
	}
	go func() { <-asked }()
	r.until = time.Time{}
	if got := r.get(t.Context(), ask); got != 2 {
		t.Errorf("answer %d after the first one was too old", got)
	}
}
