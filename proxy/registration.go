package proxy

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// registerTimeout bounds how long adding or deleting an entry of the registry takes.
const registerTimeout = 5 * time.Second

// registration is the entry of a session's backend in the registry. The up pump adds the
// entry, and the down pump deletes it, or the up pump when the session changes its candidacy. The
// session's mu guards it.
type registration struct {
	state registrationState
	// entry is set in Registered and Unregistering.
	entry fencing.Registration
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
func (r *registration) add(entry fencing.Registration) bool {
	if r.state != unregistered {
		return false
	}
	r.state, r.entry = registered, entry
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

// register adds the backend to the registry. It first waits until an earlier entry is deleted.
func (x *session) register(ctx context.Context) *fencing.Refusal {
	x.mu.Lock()
	deleted := x.registration.deleted
	x.mu.Unlock()
	if deleted != nil {
		<-deleted
	}
	x.mu.Lock()
	state := x.registration.state
	request := x.m.RegisterRequest()
	request.PID, request.Started = x.backend.pid, x.backend.started
	x.mu.Unlock()
	if state != unregistered {
		return fencing.RegistrationStuckRefusal
	}
	if request.Started == "" {
		return fencing.UnknownServerRefusal
	}
	adding, cancel := context.WithTimeout(ctx, registerTimeout)
	entry, err := x.member.candidacy().Fence().RegisterBackend(adding, request)
	cancel()
	if err != nil {
		x.log().Debug("registry refused", zap.Error(err))
		x.withdraw(ctx, entry, err)
		return fencing.FaultRefusal(err)
	}
	x.mu.Lock()
	x.registration.add(entry)
	x.mu.Unlock()
	x.observer.Registered(int64(request.Announced))
	return nil
}

// withdraw deletes an entry that may have been added although an error was returned. A grant
// would otherwise end a backend that runs nothing outside the check.
func (x *session) withdraw(ctx context.Context, entry fencing.Registration, failure error) {
	var refused *fencing.Refusal
	if errors.As(failure, &refused) {
		return // it was not added
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	if err := x.member.candidacy().Fence().UnregisterBackend(ctx, entry); err != nil {
		x.log().Warn("registry entry not deleted", zap.Error(err))
	}
}

// endRegistration deletes the entry, if there is one, or waits until it is deleted. Nothing may be
// under way that rests on it.
func (x *session) endRegistration(ctx context.Context) {
	x.mu.Lock()
	x.m.Unregistered()
	begun := x.registration.beginDelete()
	deleted := x.registration.deleted
	x.mu.Unlock()
	if begun {
		x.unregister(ctx)
	} else if deleted != nil {
		<-deleted
	}
}

// unregister deletes the entry from the registry. The caller has called beginDelete.
func (x *session) unregister(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	x.observer.Unregistered()
	x.mu.Lock()
	entry := x.registration.entry
	x.mu.Unlock()
	err := x.member.candidacy().Fence().UnregisterBackend(ctx, entry)
	if err != nil {
		x.log().Warn("registry entry not deleted", zap.Error(err))
	}
	x.mu.Lock()
	x.registration.endDelete(err == nil)
	x.mu.Unlock()
}
