package main

import (
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/proxy"
)

// errComplaints says that the observer of the sessions has complained.
var errComplaints = errors.New("a message would have gone to Postgres uncovered: see the log")

// watch lets an observer that trusts nothing watch every session, if
// FENCEPOST_DEBUG_ORACLE=1. It is for tests and for debugging: it parses every
// statement once more.
type watch struct {
	log        *zap.Logger
	complaints atomic.Int64
}

// newWatch returns nil unless an observer is wanted.
func newWatch(getenv func(string) string, log *zap.Logger) *watch {
	if getenv("FENCEPOST_DEBUG_ORACLE") != "1" {
		return nil
	}
	log.Warn("every session is watched (FENCEPOST_DEBUG_ORACLE=1): this costs time and is for debugging")
	return &watch{log: log}
}

// observe is given to the proxy; nil if w is.
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

// verdict is an error if there was a complaint: a process that is watched does not
// end as if nothing was.
func (w *watch) verdict() error {
	if w == nil || w.complaints.Load() == 0 {
		return nil
	}
	return errComplaints
}
