package proxy

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// unregisterTimeout bounds how long deleting entries of the registry takes. Config.StartupTimeout bounds adding one.
const unregisterTimeout = 5 * time.Second

// registration is the entry of a session's backend in the registry, for one resource. The up pump adds the
// entry. Whoever has called beginDelete deletes it. The session's mu guards it.
type registration struct {
	state registrationState
	// entry is set in Registered and Unregistering.
	entry fencing.Registration
	epoch fencing.Epoch // under which the backend is registered
	// deleted is closed when Unregistering ends. It is nil in the other states.
	deleted chan struct{}
}

// registrationState is the state of a registration:
//
//	Unregistered ──▶ Registered ──▶ Unregistering ──▶ Stuck
//	      ▲                               │
//	      └───────────────────────────────┘
type registrationState uint8

const (
	// unregistered: the registry has no entry for the backend.
	unregistered registrationState = iota
	// registered: the registry has an entry.
	registered
	// unregistering: the entry is being deleted. No other entry may be added meanwhile.
	unregistering
	// registrationStuck: the deletion was not confirmed, and may still happen later. The
	// session never registers its backend again, because such a deletion must not hit a
	// newer entry.
	registrationStuck
)

// add records the entry. It reports false if the registry already has one, or may have
// one.
func (r *registration) add(entry fencing.Registration, e fencing.Epoch) bool {
	if r.state != unregistered {
		return false
	}
	r.state, r.entry, r.epoch = registered, entry, e
	return true
}

// beginDelete says that the entry is about to be deleted. It reports false if there is
// none.
func (r *registration) beginDelete() bool {
	if r.state != registered {
		return false
	}
	r.state, r.deleted = unregistering, make(chan struct{})
	return true
}

// endDelete says whether the deletion was confirmed.
func (r *registration) endDelete(confirmed bool) {
	if r.state != unregistering {
		return
	}
	close(r.deleted)
	*r = registration{state: registrationStuck}
	if confirmed {
		r.state = unregistered
	}
}

// registrationOf returns the registration for a resource, "" for that of the startup. The session's mu is held.
func (x *session) registrationOf(resource string) *registration {
	r := x.registrations[resource]
	if r == nil {
		if x.registrations == nil {
			x.registrations = make(map[string]*registration, 1)
		}
		r = &registration{}
		x.registrations[resource] = r
	}
	return r
}

// register adds the backend to the registry for all of these resources, or for none. It first waits until earlier entries
// are deleted. After an error, the registry may have an entry nevertheless: a grant then ends the backend, which costs the
// client a connection.
// resource is the one for which it was refused.
func (x *session) register(ctx context.Context, all []protocol.Told) (resource string, refusal *fencing.Refusal) {
	var made []string
	for _, one := range all {
		if refusal := x.registerFor(ctx, one); refusal != nil {
			x.unregister(ctx, x.beginDelete(made))
			return one.Resource, refusal
		}
		made = append(made, one.Resource)
	}
	return "", nil
}

// registerFor is register for one resource.
func (x *session) registerFor(ctx context.Context, told protocol.Told) *fencing.Refusal {
	x.awaitDeleted(told.Resource)
	x.mu.Lock()
	state := x.registrationOf(told.Resource).state
	x.mu.Unlock()
	switch {
	case state != unregistered:
		return fencing.RegistrationStuckRefusal
	case x.backend.begun == "":
		return fencing.UnknownBackendRefusal
	}
	cand := x.belonging(told.Resource)
	request := fencing.RegisterRequest{
		PID: x.backend.pid, Started: x.backend.started, Begun: x.backend.begun,
		Worker: x.member.claim.Worker, Incarnation: cand.Incarnation(), Announced: told.Epoch, Held: cand.Status().Epoch,
	}
	adding, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupTimeout)
	entry, err := cand.Fence().RegisterBackend(adding, request)
	cancel()
	if err != nil {
		x.log().Debug("registry refused", zap.Error(err))
		refusal := fencing.FaultRefusal(err)
		if refusal.SQLState != fencing.StateSuperseded {
			return refusal
		}
		x.readRecord(ctx, cand) // the status says so, before the client is told
		if st := cand.Status(); st.Role == fencing.Superseded {
			return fencing.SupersededRefusal(cmp.Or(told.Resource, x.member.claim.Resource), request.Worker, request.Incarnation, st)
		}
		return refusal
	}
	x.mu.Lock()
	x.registrationOf(told.Resource).add(entry, request.Held)
	x.mu.Unlock()
	return nil
}

// awaitDeleted waits until the entry for a resource is deleted, if that has begun.
func (x *session) awaitDeleted(resource string) {
	x.mu.Lock()
	deleted := x.registrationOf(resource).deleted
	x.mu.Unlock()
	if deleted != nil {
		<-deleted
	}
}

// letGo deletes all entries, or waits until they are deleted. Nothing may be under way that rests on them.
func (x *session) letGo(ctx context.Context) {
	x.mu.Lock()
	x.m.LetGo()
	begun := x.beginDeleteAll()
	x.mu.Unlock()
	x.unregister(ctx, begun)
	x.mu.Lock()
	var others []<-chan struct{}
	for _, r := range x.registrations {
		if r.deleted != nil {
			others = append(others, r.deleted)
		}
	}
	x.mu.Unlock()
	for _, deleted := range others {
		<-deleted
	}
}

// beginDeleteAll begins to delete all entries, and returns their resources. The session's mu is held.
func (x *session) beginDeleteAll() (begun []string) {
	for resource, r := range x.registrations {
		if r.beginDelete() {
			begun = append(begun, resource)
		}
	}
	return begun
}

// beginDelete is beginDeleteAll for some resources, and takes the session's mu.
func (x *session) beginDelete(resources []string) (begun []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, resource := range resources {
		if x.registrationOf(resource).beginDelete() {
			begun = append(begun, resource)
		}
	}
	return begun
}

// unregister deletes the entries for these resources, whose deletion has begun.
func (x *session) unregister(ctx context.Context, resources []string) {
	ctx, cancel := context.WithTimeout(ctx, unregisterTimeout)
	defer cancel()
	for _, resource := range resources {
		x.mu.Lock()
		entry := x.registrationOf(resource).entry
		x.mu.Unlock()
		err := x.belonging(resource).Fence().UnregisterBackend(ctx, entry)
		if err != nil {
			x.log().Warn("registry entry not deleted", zap.Error(err))
		}
		x.mu.Lock()
		x.registrationOf(resource).endDelete(err == nil)
		x.mu.Unlock()
	}
}
