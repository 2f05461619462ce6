package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/auditlog"
	"github.com/fencepost/fencepost/cmd/fencepost/hosts"
	"github.com/fencepost/fencepost/cmd/fencepost/rejections"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/proxy"
)

// recordTimeout bounds the last batch of the table of rejections. The leases are released
// meanwhile.
const recordTimeout = 3 * time.Second

// auditing is what records refusals beside the metrics.
type auditing struct {
	log   *auditlog.Log
	table *rejections.Table
}

func (s *serving) newAuditing(logs loggers) auditing {
	return auditing{log: auditlog.New(logs.audit), table: rejections.New(rejections.Config{
		Settings: func() rejections.Settings {
			c := s.current().Audit
			return rejections.Settings{Record: c.Table, Keep: c.Keep.D()}
		},
		Connect: func(ctx context.Context, database string, do func(*pgx.Conn) error) error {
			return store.Look(ctx, hosts.Store(*s.current(), s.upstream, database, zap.NewNop()), do)
		},
		Gone:       store.Gone,
		Open:       func() []string { return slices.Collect(maps.Keys(s.fences.all())) },
		Unrecorded: s.metrics.Unrecorded,
		Log:        s.log.Named("rejections"),
	})}
}

// close writes what is left, and returns a function that waits until the database has it too, for
// at most recordTimeout.
func (a auditing) close(ctx context.Context) (wait func()) {
	a.log.Close()
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	var recording sync.WaitGroup
	recording.Go(func() { a.table.Close(ctx) })
	return func() {
		defer cancel()
		recording.Wait()
	}
}

// errComplaints means that the sessions' observer has complained.
var errComplaints = errors.New("a message would have reached Postgres without coverage: see the log")

// watch lets an independent observer check every session if FENCEPOST_DEBUG_ORACLE=1.
// It is for tests and debugging, because it parses every statement a second time.
type watch struct {
	log        *zap.Logger
	complaints atomic.Int64
}

// newWatch returns nil unless the observer is enabled.
func newWatch(getenv func(string) string, log *zap.Logger) *watch {
	if getenv("FENCEPOST_DEBUG_ORACLE") != "1" {
		return nil
	}
	log.Warn("an observer checks every session (FENCEPOST_DEBUG_ORACLE=1): this is slow and for debugging only")
	return &watch{log: log}
}

// observe returns the function that the proxy calls for each session, or nil if w is
// nil.
func (w *watch) observe() func(proxy.Observed) proxy.Observer {
	if w == nil {
		return nil
	}
	return func(o proxy.Observed) proxy.Observer {
		return oracle.New(oracle.Facts(o), func(complaint string) {
			w.complaints.Add(1)
			w.log.Error(complaint)
		})
	}
}

// verdict returns an error if there was a complaint, so that the process does not end
// as if nothing had happened.
func (w *watch) verdict() error {
	if w == nil || w.complaints.Load() == 0 {
		return nil
	}
	return errComplaints
}
