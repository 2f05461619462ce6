package proxy

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// retireAtRest ends the backend of a session that retires, if the session is at rest, or unregisters it if the session
// continues and discards. The client gets the error at its next use, as the client of a superseded session is. x.mu is
// held.
func (x *session) retireAtRest() {
	i := slices.IndexFunc(x.registrations, registration.isRetiring)
	if i < 0 || !x.m.Is(protocol.AtRest) {
		return
	}
	if s := x.registrations[i].membership; !s.discards {
		x.supersede(s)
		return
	}
	deleted := x.takeRegistrations()
	x.deletions.Go(func() { x.unregister(context.Background(), deleted) })
}

// retireWithin is how long a session is to end at rest for one grant, which has ended its backend or was given up by
// then.
const retireWithin = 30 * time.Second

// isRetiring reports whether the backend is ended once the session is at rest.
func (r registration) isRetiring() bool {
	return !r.retireUntil.IsZero() && time.Now().Before(r.retireUntil)
}

// endedRefusal is the error for the client of a session that was superseded, or that has retired for a grant. That
// grant may have been given up.
func (x *session) endedRefusal() *fencing.Refusal {
	if x.supersededBy().candidacy().Status().Role != fencing.Superseded {
		defer while(&x.active.busy)()
		s := x.findSuperseded(context.Background())
		if s == nil {
			return fencing.RetiredRefusal
		}
		x.member.state.Store(s)
	}
	return x.supersededBy().supersededRefusal()
}

const (
	// verifyEvery is how often the proxy compares its registered sessions with the registry.
	verifyEvery = time.Second
	// verifyTimeout bounds one such comparison.
	verifyTimeout = 5 * time.Second
)

// verifyRegistrations compares the registered sessions with the registry, until ctx ends. A session of which the
// registry has lost the entry would be missed by the next grant, so it ends.
func (s *Server) verifyRegistrations(ctx context.Context) {
	tick := time.NewTicker(verifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		var looks errgroup.Group
		looks.SetLimit(askedAtOnce)
		for registry, all := range s.registeredSessions() {
			looks.Go(func() error {
				all.verify(ctx, registry)
				return nil
			})
		}
		_ = looks.Wait() // the functions return no error
	}
}

// registeredSessions are the sessions with entries in one registry.
type registeredSessions struct {
	sessions []*session
	entries  []int64 // one for each of sessions
}

// registryKey is what has a registry: a database of a server.
type registryKey struct{ database, started string }

func (s *Server) registeredSessions() map[registryKey]*registeredSessions {
	s.mu.Lock()
	sessions, _ := s.openLocked()
	s.mu.Unlock()
	all := make(map[registryKey]*registeredSessions)
	for _, x := range sessions {
		x.mu.Lock()
		for _, r := range x.registrations {
			if x.m != nil {
				key := registryKey{x.start.Database, x.backend.Started}
				of := all[key]
				if of == nil {
					of = &registeredSessions{}
					all[key] = of
				}
				of.sessions, of.entries = append(of.sessions, x), append(of.entries, r.entry.ID)
			}
		}
		x.mu.Unlock()
	}
	return all
}

// verify ends those of the sessions whose entries the registry does not have.
func (all *registeredSessions) verify(ctx context.Context, registry registryKey) {
	ctx, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	missing, err := all.sessions[0].member.candidacy().Fence().Unregistered(ctx, registry.started, all.entries)
	if err != nil {
		return // the database is followed elsewhere, and a grant does not depend on this
	}
	lost := make(map[int64]bool, len(missing))
	for _, entry := range missing {
		lost[entry] = true
	}
	for i, x := range all.sessions {
		if lost[all.entries[i]] {
			x.unregistered(ctx, all.entries[i])
		}
	}
}

// unregistered ends a session whose entry is not in the registry. Mostly a grant has ended the backend, and the session
// does not know that yet.
func (x *session) unregistered(ctx context.Context, entry int64) {
	x.mu.Lock()
	var s *membership
	if i := slices.IndexFunc(x.registrations, func(r registration) bool { return r.entry.ID == entry }); i >= 0 {
		s = x.registrations[i].membership
	}
	x.mu.Unlock()
	if s == nil || x.isSuperseded() || s.candidacy().CheckSuperseded(ctx) || ctx.Err() != nil {
		return // in the last case the database has not said who leads, and the next comparison asks again
	}
	x.log().Error("session ended: the registry has lost the entry of its backend", zap.Uint32("pid", x.backend.PID))
	x.endAtOnce(fencing.LostRegistrationRefusal)
}
