package election

import (
	"testing"

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
