package proxy

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// unregisterTimeout bounds how long deleting entries of the registry takes. Config.StartupTimeout bounds adding one.
const unregisterTimeout = 5 * time.Second

// registration is an entry of a session's backend in the registry.
type registration struct {
	membership *membership
	entry      fencing.Entry
	epoch      fencing.Epoch // under which the backend is registered
	// retireUntil, if not zero, is until when the backend is ended once the session is at rest, because a grant waits
	// for it.
	retireUntil time.Time
}

// registrations are the entries of a session's backend, one for a membership, without those that are being deleted. A
// deletion names the number of its entry, so that nothing waits for it: it cannot hit a newer one, and an entry that it
// leaves is deleted by the next grant, which ends the backend.
type registrations []registration

// of returns the entry for a membership, nil if there is none.
func (r registrations) of(s *membership) *registration {
	i := slices.IndexFunc(r, func(one registration) bool { return one.membership == s })
	if i < 0 {
		return nil
	}
	return &r[i]
}

// take takes out the entries for these resources, for unregister.
func (r *registrations) take(resources []string) (taken registrations) {
	*r = slices.DeleteFunc(*r, func(one registration) bool {
		took := slices.Contains(resources, one.membership.resource)
		if took {
			taken = append(taken, one)
		}
		return took
	})
	return taken
}

// register adds the backend to the registry for all of these resources, or for none. After an error, the registry may
// have an entry nevertheless: a grant then ends the backend, which costs the client a connection.
// resource is the one for which it was refused.
func (x *session) register(ctx context.Context, all []protocol.AnnouncedEpoch) (resource string, refusal *fencing.Refusal) {
	var made []string
	for _, one := range all {
		if refusal := x.registerFor(ctx, one); refusal != nil {
			x.mu.Lock()
			deleted := x.registrations.take(made)
			x.mu.Unlock()
			x.unregister(ctx, deleted)
			return one.Resource, refusal
		}
		made = append(made, one.Resource)
	}
	return "", nil
}

// registerFor is register for one resource.
func (x *session) registerFor(ctx context.Context, announced protocol.AnnouncedEpoch) *fencing.Refusal {
	s := x.membership(announced.Resource)
	b := s.joinedTo.Load()
	request := fencing.RegisterRequest{
		PID: x.backend.PID, Started: x.backend.Started, Seen: x.backend.Seen,
		Worker: x.member.request.Worker, Incarnation: b.Incarnation(), Announced: announced.Epoch, Held: b.Status().Epoch,
	}
	adding, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	defer cancel()
	entry, err := b.Fence().RegisterBackend(adding, request)
	if err != nil {
		x.log().Debug("registry refused", zap.Error(err))
		if errors.Is(adding.Err(), context.DeadlineExceeded) {
			x.srv.failing.fence.Failed(zap.String("database", x.start.Database), zap.String("resource", announced.Resource))
			return refusals.NotRegistered
		}
		refusal := fencing.FaultRefusal(err)
		if refusal.SQLState != fencing.StateSuperseded {
			return refusal
		}
		x.readRecord(ctx, b) // the status says so before the client gets the error
		if b.Status().Role == fencing.Superseded {
			return s.supersededRefusal()
		}
		return refusal
	}
	x.srv.failing.fence.Passed()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.registrations.take([]string{announced.Resource})
	x.registrations = append(x.registrations, registration{membership: s, entry: entry, epoch: request.Held})
	return nil
}

// unregisterAll deletes all entries. Nothing that depends on them may be running.
func (x *session) unregisterAll(ctx context.Context) {
	x.mu.Lock()
	deleted := x.takeRegistrations()
	x.mu.Unlock()
	x.unregister(ctx, deleted)
}

// takeRegistrations removes all entries from the session, for unregister. The session's mu is held.
func (x *session) takeRegistrations() registrations {
	x.m.Unregistered()
	all := x.registrations
	x.registrations = nil
	return all
}

// unregister deletes these entries, which are taken out of the session's.
func (x *session) unregister(ctx context.Context, deleted registrations) {
	ctx, cancel := context.WithTimeout(ctx, unregisterTimeout)
	defer cancel()
	for _, r := range deleted {
		if err := r.membership.candidacy().Fence().UnregisterBackend(ctx, r.entry); err != nil {
			x.log().Warn("registry entry not deleted", zap.Error(err))
		}
	}
}
