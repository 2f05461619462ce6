package main

import (
	"errors"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/oracle"
	"github.com/fencepost/fencepost/proxy"
)

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
