package service_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// busyLeases is a lease service that answers Check when the caller gives up.
type busyLeases struct {
	electors.Service
	checked func()
	checks  atomic.Int32 // under way
	closed  atomic.Int32 // how many were, when the service was closed
}

func (b *busyLeases) Check(ctx context.Context, _ []time.Duration) error {
	b.checks.Add(1)
	defer b.checks.Add(-1)
	b.checked()
	<-ctx.Done()
	return ctx.Err()
}

func (b *busyLeases) Close() error {
	b.closed.Store(b.checks.Load())
	return b.Service.Close()
}

// TestTheLeaseServiceIsClosedLast lets the proxy end while it tries its lease service. A client of
// Redis that is used while it is closed panics.
func TestTheLeaseServiceIsClosedLast(t *testing.T) {
	t.Parallel()
	checked := make(chan struct{})
	leases := &busyLeases{checked: sync.OnceFunc(func() { close(checked) })}
	leases.closed.Store(-1)
	r := servicetest.StartWith(t, pgtest.Shared(t), servicetest.Options{Open: func(cfg config.Config, proxy string, log *zap.Logger) (_ electors.Service, err error) {
		leases.Service, err = electors.All().Serve(cfg, proxy, log)
		return leases, err
	}})
	<-checked
	if err := r.Stop(); err != nil {
		t.Errorf("end the proxy: %v", err)
	}
	if n := leases.closed.Load(); n != 0 {
		t.Errorf("the lease service was closed while %d tries of it were under way, want 0 (-1: it was not closed)", n)
	}
}
