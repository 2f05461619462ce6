package playground

import "slices"

// sceneDef is a scene: how it is called, and what happens in it.
type sceneDef struct {
	name   string
	elects bool // the workers are nodes that elect their leader themselves
	// steps returns the steps of a new run of the scene.
	steps func() []*step
}

// step is one step of a scene. It begins when the one before is done.
type step struct {
	text   string
	button string // what the visitor does; "" if the step does itself
	// do, if not nil, is what the button does, or what is done when the step begins.
	do func(l *Lab) error
	// until reports whether the step is done; nil means as soon as do has been done.
	until func(l *Lab) bool

	acted bool
}

// scene is a run of a scene.
type scene struct {
	def       *sceneDef
	algorithm string
	resource  string
	steps     []*step
	at        int // the current step; len(steps) at the end
}

// errNoStep is the error of a step that waits for something else than the visitor.
const errNoStep notNow = "this step does not wait for you"

// act does what the button of the current step does.
func (s *scene) act(l *Lab) error {
	if s.at >= len(s.steps) {
		return errNoStep
	}
	current := s.steps[s.at]
	if current.acted || current.button == "" {
		return errNoStep
	}
	if err := current.do(l); err != nil {
		return err
	}
	current.acted = true
	return nil
}

// advance goes on to the next steps while they are done.
func (s *scene) advance(l *Lab) {
	for ; s.at < len(s.steps); s.at++ {
		current := s.steps[s.at]
		if !current.acted && current.button == "" {
			current.acted = true
			if current.do != nil {
				if err := current.do(l); err != nil {
					l.mu.problem = err.Error()
				}
			}
		}
		if !current.acted || current.until != nil && !current.until(l) {
			return
		}
	}
}

// view describes the steps.
func (s *scene) view() []Step {
	steps := []Step{}
	for i, st := range s.steps {
		v := Step{Text: st.text, State: "later"}
		switch {
		case i < s.at:
			v.State = "done"
		case i == s.at:
			v.State = "now"
			if !st.acted {
				v.Button = st.button
			}
		}
		steps = append(steps, v)
	}
	return steps
}

// What steps wait for.

// leaderLocked returns the slot of the worker to whom the highest epoch was granted, nil if it is gone.
func (l *Lab) leaderLocked() *slot {
	for _, s := range l.mu.slots {
		if s.alive && s.id != "" && s.id == l.mu.seen.lease.Leader {
			return s
		}
	}
	return nil
}

// wroteLocked returns how many rows have been written under the highest epoch, as far as is shown.
func (l *Lab) wroteLocked() int {
	n := 0
	for _, row := range l.mu.seen.notes {
		if row.Epoch == l.mu.seen.lease.Epoch {
			n++
		}
	}
	return n
}

// auditedLocked returns whether the audit log has a refused write of the process of a slot.
func (l *Lab) auditedLocked(s *slot) bool {
	return slices.ContainsFunc(l.mu.audit, func(a Audit) bool { return a.Worker == s.id })
}

// believers returns the slots of those who believe that they lead.
func (l *Lab) believersLocked() []*slot {
	var all []*slot
	for _, s := range l.mu.slots {
		if l.viewLocked(s).Leads {
			all = append(all, s)
		}
	}
	return all
}
