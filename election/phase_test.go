package election

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// becomes are the transitions by the phase to which they lead.
var becomes = map[phase]func(*standing){
	leading:    (*standing).becomeLeading,
	lapsed:     (*standing).becomeLapsed,
	superseded: func(s *standing) { s.becomeSuperseded(fencing.Record{Epoch: 9}) },
}

func TestPhasesFollowOnlyWhereTheyCan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		from standing
		to   []phase
	}{
		"following, no epoch": {standing{}, []phase{superseded}},
		"following, epoch":    {standing{epoch: 3}, []phase{lapsed, superseded}},
		"leading":             {standing{phase: leading, epoch: 3}, []phase{lapsed, superseded}},
		"lapsed":              {standing{phase: lapsed, epoch: 3}, []phase{leading, superseded}},
		"superseded":          {standing{phase: superseded, epoch: 3}, []phase{superseded}},
	} {
		possible := map[phase]bool{}
		for _, to := range c.to {
			possible[to] = true
		}
		for to, become := range becomes {
			s := c.from
			if refused := panics(func() { become(&s) }); refused == possible[to] {
				t.Errorf("%s becomes %v: refused is %v", name, to, refused)
			}
			want := to
			if !possible[to] {
				want = c.from.phase
			}
			if s.phase != want {
				t.Errorf("%s becomes %v: it is now %v", name, to, s.phase)
			}
		}
	}
}

func TestEpochAloneDoesNotMakeACandidacyLead(t *testing.T) {
	t.Parallel()
	for from, want := range map[phase]phase{following: lapsed, leading: leading, lapsed: lapsed, superseded: superseded} {
		s := standing{phase: from}
		s.hasEpoch(3)
		if s.phase != want || s.epoch != 3 {
			t.Errorf("%v with an epoch: %+v, want %v", from, s, want)
		}
	}
}

func TestFirstHigherGrantSupersedes(t *testing.T) {
	t.Parallel()
	s := standing{phase: lapsed, epoch: 3}
	for _, c := range []struct{ by, want fencing.Epoch }{
		{2, 2}, // read before the grant that superseded the candidacy
		{4, 4},
		{5, 4},
	} {
		s.becomeSuperseded(fencing.Record{Epoch: c.by})
		if s.supersededBy.Epoch != c.want {
			t.Errorf("after epoch %d: superseded by %d, want %d", c.by, s.supersededBy.Epoch, c.want)
		}
	}
}

func TestHoldingOfAnAwardIsTrustedFromBeforeTheRequest(t *testing.T) {
	t.Parallel()
	set := Settings{TTL: 9 * time.Second, Margin: time.Second}
	lease := &Lease{Index: 7}
	for name, c := range map[string]struct {
		freeSince time.Duration
		want      time.Duration // freeSince of the holding
	}{
		"not known to be free":         {0, 100 * time.Second},
		"free for a while":             {90 * time.Second, 90 * time.Second},
		"freed after it was asked for": {101 * time.Second, 100 * time.Second},
	} {
		got := newHolding(lease, set, 100*time.Second, c.freeSince, time.Millisecond)
		want := holding{
			lease: lease, trusted: 108 * time.Second, renewAt: 102*time.Second + time.Millisecond,
			requested: 100 * time.Second, confirmedAt: 100 * time.Second, freeSince: c.want,
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestLateResponseDoesNotShortenTrust(t *testing.T) {
	t.Parallel()
	set := Settings{TTL: 9 * time.Second, Margin: time.Second}
	h := newHolding(&Lease{}, set, 100*time.Second, 0, 0)
	for _, c := range []struct{ sent, trusted, renewAt time.Duration }{
		{104 * time.Second, 112 * time.Second, 105 * time.Second},
		{101 * time.Second, 112 * time.Second, 102 * time.Second},
		{105 * time.Second, 113 * time.Second, 108 * time.Second},
	} {
		h = h.confirmed(set, c.sent, 0)
		if h.trusted != c.trusted || h.renewAt != c.renewAt {
			t.Errorf("confirmed by a request sent at %v: trusted until %v, renewed at %v, want %v and %v",
				c.sent, h.trusted, h.renewAt, c.trusted, c.renewAt)
		}
	}
}

func TestTrustEndsWithWhatTheServiceGranted(t *testing.T) {
	t.Parallel()
	const sent = 100 * time.Second
	for name, c := range map[string]struct {
		set              Settings
		granted          time.Duration
		trusted, renewAt time.Duration
	}{
		"what was asked for":          {Settings{TTL: 9 * time.Second, Margin: time.Second}, 0, 108 * time.Second, 102 * time.Second},
		"more than was asked for":     {Settings{TTL: 9 * time.Second, Margin: time.Second}, 20 * time.Second, 108 * time.Second, 102 * time.Second},
		"less than was asked for":     {Settings{TTL: 60 * time.Second}, 6 * time.Second, 105400 * time.Millisecond, 102 * time.Second},
		"less, with a margin of half": {Settings{TTL: 60 * time.Second, Margin: 30 * time.Second}, 12 * time.Second, 106 * time.Second, 104 * time.Second},
	} {
		h := newHolding(&Lease{Granted: c.granted}, c.set, sent, 0, 0)
		if h.trusted != c.trusted || h.renewAt != c.renewAt {
			t.Errorf("%s: trusted until %v, renewed at %v, want %v and %v", name, h.trusted, h.renewAt, c.trusted, c.renewAt)
		}
		if again := h.confirmed(c.set, sent+3*time.Second, 0); again.trusted != c.trusted+3*time.Second {
			t.Errorf("%s: after a renewal trusted until %v, want %v", name, again.trusted, c.trusted+3*time.Second)
		}
	}
}

func TestHoldingLeadsWhileItIsGrantedAndTrusted(t *testing.T) {
	t.Parallel()
	const trusted = 100 * time.Second
	for name, c := range map[string]struct {
		h    holding
		now  time.Duration
		want bool
	}{
		"no lease":        {holding{}, 0, false},
		"not granted":     {holding{lease: &Lease{}, trusted: trusted}, trusted - 1, false},
		"granted":         {holding{lease: &Lease{}, granted: true, trusted: trusted}, trusted - 1, true},
		"at the deadline": {holding{lease: &Lease{}, granted: true, trusted: trusted}, trusted, false},
	} {
		if got := c.h.leads(c.now); got != c.want {
			t.Errorf("%s: leads is %v", name, got)
		}
	}
}

func TestHastenedHoldingIsDueAtOnce(t *testing.T) {
	t.Parallel()
	h := holding{lease: &Lease{}, grantAt: 5 * time.Second, renewAt: 20 * time.Second}.hastened(10 * time.Second)
	if h.grantAt != 5*time.Second || h.renewAt != 10*time.Second {
		t.Errorf("at 10s: grant at %v, renewal at %v", h.grantAt, h.renewAt)
	}
}
