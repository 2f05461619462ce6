package service

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/audit/auditlog"
	"github.com/fencepost/fencepost/internal/audit/rejections"
)

// recordTimeout bounds the last batch of the table of rejections. The leases are released
// meanwhile.
const recordTimeout = 3 * time.Second

// auditing records refusals, in addition to the metrics.
type auditing struct {
	log   *auditlog.Log
	table *rejections.Table
}

func (s *Server) newAuditing(logs Loggers) auditing {
	return auditing{log: auditlog.New(logs.Audit), table: rejections.New(rejections.Config{
		Settings: func() rejections.Settings {
			c := s.current().Audit
			return rejections.Settings{Record: c.Table, Keep: c.Keep.D()}
		},
		Connect:    s.look,
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
