package proxy

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/netlooptest"
	"github.com/fencepost/fencepost/proxy/protocol"
)

func TestPhasesOnlyMoveForward(t *testing.T) {
	t.Parallel()
	possible := map[[2]phase]bool{
		{phaseStarting, phaseServing}: true, {phaseStarting, phaseEnding}: true,
		{phaseServing, phaseDraining}: true, {phaseServing, phaseEnding}: true,
		{phaseDraining, phaseEnding}: true,
	}
	for from := phaseStarting; from <= phaseEnding; from++ {
		for to := phaseStarting; to <= phaseEnding; to++ {
			var l lifecycle
			l.current.Store(uint32(from))
			want, after := possible[[2]phase{from, to}], from
			if want {
				after = to
			}
			if got := l.advance(to); got != want || l.phase() != after {
				t.Errorf("from %d to %d: %v, now %d; want %v, %d", from, to, got, l.phase(), want, after)
			}
		}
	}
}

func TestTheClientIsToldOnce(t *testing.T) {
	t.Parallel()
	var l lifecycle
	if !l.claimTelling() || l.claimTelling() || !l.claimAudit() || l.claimAudit() {
		t.Error("a second caller got the right to tell the client or to audit")
	}
}

func TestARegistrationIsAddedAndDeletedInTurns(t *testing.T) {
	t.Parallel()
	var r registration
	entry := fencing.Registration{PID: 1, ID: 2}
	if r.beginDelete() {
		t.Error("deletes an entry that was never added")
	}
	for range 2 {
		if !r.add(entry) || r.entry != entry || r.add(fencing.Registration{}) {
			t.Fatalf("not added exactly once: %+v", r)
		}
		if !r.beginDelete() || r.beginDelete() || r.add(entry) {
			t.Fatalf("not deleted exactly once: %+v", r)
		}
		deleted := r.deleted
		r.endDelete(true)
		r.endDelete(true)
		<-deleted
		if r.state != unregistered || r.deleted != nil {
			t.Fatalf("after the deletion: %+v", r)
		}
	}
	r.add(entry)
	r.beginDelete()
	r.endDelete(false)
	if r.state != registrationStuck || r.add(entry) || r.beginDelete() {
		t.Errorf("after a deletion that was not confirmed: %+v", r)
	}
}

// TestASessionThatIsDrainedBeforeItJoinsIsNotPolled: the candidacy's loop may look at it
// before its candidacy is set.
func TestASessionThatIsDrainedBeforeItJoinsIsNotPolled(t *testing.T) {
	t.Parallel()
	client, server := netlooptest.Pair(t)
	s := &Server{crews: newCrews()}
	defer s.crews.close()
	x := newSession(s, client, server, &startup{own: ownParams{workerTimeout: -1}})
	other := newSession(s, client, server, &startup{})
	for _, member := range []*session{x, other} {
		s.crews.join(member, fencing.JoinRequest{Worker: "w"})
		defer s.crews.leave(member)
	}
	x.cancel = func() {}
	x.drain()
	if _, owed := x.Activity(); !owed || x.member.crew.polling.Load() {
		t.Errorf("owed %v, a poll is due: %v", owed, x.member.crew.polling.Load())
	}
}

// failingFence fails every registration with err, and records what is withdrawn.
type failingFence struct {
	fencing.Fence
	err       error
	withdrawn []int64
}

// failingCandidacy has a failingFence.
type failingCandidacy struct {
	fencing.Candidacy
	fence *failingFence
}

func (c failingCandidacy) Fence() fencing.Fence { return c.fence }

func (f *failingFence) RegisterBackend(context.Context, fencing.RegisterRequest) (fencing.Registration, error) {
	return fencing.Registration{PID: 1, ID: 42}, f.err
}

func (f *failingFence) UnregisterBackend(_ context.Context, r fencing.Registration) error {
	f.withdrawn = append(f.withdrawn, r.ID)
	return nil
}

// TestARegistrationWithAnUnknownResultIsWithdrawn: the entry may be in the registry, where a
// grant would end the backend for it. After a refusal it is not there.
func TestARegistrationWithAnUnknownResultIsWithdrawn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want []int64
	}{
		"a lost reply": {errors.New("the reply is lost"), []int64{42}},
		"a refusal":    {&fencing.Refusal{SQLState: fencing.StateNotLeader}, nil},
	} {
		fence := &failingFence{err: c.err}
		client, server := netlooptest.Pair(t)
		x := newSession(&Server{cfg: Config{Logger: zap.NewNop()}}, client, server, &startup{})
		x.member.become(failingCandidacy{fence: fence})
		x.backend.started = "00"
		x.m = protocol.New(protocol.Config{Mode: protocol.ModeFenced, Version: 18, Status: func() *fencing.Status { return &fencing.Status{} }})
		if x.register(t.Context()) == nil || !slices.Equal(fence.withdrawn, c.want) {
			t.Errorf("%s: entries %v are withdrawn, want %v", name, fence.withdrawn, c.want)
		}
		if x.registration.state != unregistered {
			t.Errorf("%s: the state is %d", name, x.registration.state)
		}
	}
}
