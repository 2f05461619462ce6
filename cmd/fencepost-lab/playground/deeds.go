package playground

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/playground/textbook"
)

// startLocked starts a worker. A node begins as one that knows of no leader; it gets a process when it
// is elected.
func (l *Lab) startLocked(s *slot) error {
	if s.alive {
		return nil
	}
	if s.node == 0 {
		if err := l.launchLocked(s); err != nil {
			return err
		}
	} else {
		l.mu.cluster.Start(s.node)
	}
	s.alive, s.frozen, s.trouble = true, false, ""
	l.sayLocked("you", s.name, false, "started")
	return nil
}

func (l *Lab) startAllLocked() error {
	for _, s := range l.mu.slots {
		if err := l.startLocked(s); err != nil {
			return err
		}
	}
	return nil
}

// killLocked ends a worker's process with SIGKILL, frozen or not.
func (l *Lab) killLocked(s *slot) error {
	if !s.alive {
		return nil
	}
	if s.node > 0 {
		l.mu.cluster.Kill(s.node)
	}
	s.alive, s.frozen, s.armed = false, false, false
	l.sayLocked("you", s.name, false, "killed (SIGKILL)")
	return l.endProcessLocked(s)
}

// endProcessLocked kills the process of a slot, if there is one.
func (l *Lab) endProcessLocked(s *slot) error {
	p := s.proc
	s.proc, s.told, s.id = nil, report{}, ""
	if p == nil {
		return nil
	}
	return p.Stop(syscall.SIGKILL)
}

// freezeLocked freezes a worker wherever it is.
func (l *Lab) freezeLocked(s *slot) error {
	if !s.alive || s.frozen {
		return nil
	}
	if err := l.stopProcessLocked(s); err != nil {
		return err
	}
	l.sayLocked("you", s.name, false, "frozen (SIGSTOP)")
	return nil
}

// freezeWritingLocked freezes a worker when it is next in the middle of a transaction.
func (l *Lab) freezeWritingLocked(s *slot) error {
	s.armed = s.alive && !s.frozen
	return nil
}

func (l *Lab) stopProcessLocked(s *slot) error {
	s.frozen, s.armed = true, false
	if s.node > 0 {
		l.mu.cluster.Freeze(s.node)
	}
	return signal(s, syscall.SIGSTOP)
}

// thawLocked lets a frozen worker go on.
func (l *Lab) thawLocked(s *slot) error {
	if !s.frozen {
		return nil
	}
	s.frozen = false
	if s.node > 0 {
		l.mu.cluster.Thaw(s.node)
	}
	l.sayLocked("you", s.name, false, "thawed (SIGCONT): it goes on as if nothing had happened")
	return signal(s, syscall.SIGCONT)
}

// signal sends a signal to the process of a slot, if there is one.
func signal(s *slot, sig syscall.Signal) error {
	if s.proc == nil {
		return nil
	}
	if err := s.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// moveLocked moves a worker to the other side of a partition, or back. A node still reaches its own
// proxy, which is beside it; another worker does not reach Fencepost.
func (l *Lab) moveLocked(s *slot, cut bool) {
	if s.cut == cut {
		return
	}
	s.cut = cut
	if s.node > 0 {
		side := 0
		if cut {
			side = 1
		}
		l.mu.cluster.Move(s.node, side)
	} else {
		s.relay.set(cut)
	}
	if cut {
		l.sayLocked("you", s.name, false, "cut off from the others")
	} else {
		l.sayLocked("you", s.name, false, "reconnected")
	}
}

// splitLocked partitions the cluster, so that the first nodes do not reach the last ones.
func (l *Lab) splitLocked() {
	for _, s := range l.mu.slots {
		l.moveLocked(s, s.node <= nodes/2)
	}
}

// healLocked ends all partitions.
func (l *Lab) healLocked() {
	for _, s := range l.mu.slots {
		l.moveLocked(s, false)
	}
}

// algorithms are those of the scene with two leaders.
var algorithms = map[string]textbook.Algorithm{"bully": textbook.Bully, "ring": textbook.Ring}

// elect moves the cluster of the scene, until ctx ends.
func (l *Lab) elect(ctx context.Context) {
	tick := time.NewTicker(textbook.Tick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.moveCluster()
		case <-ctx.Done():
			return
		}
	}
}

// moveCluster lets a tick pass in the cluster. Whoever believes from now on that it leads gets a
// process, which writes; whoever does not any more loses it.
func (l *Lab) moveCluster() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.cluster == nil || len(l.mu.slots) == 0 {
		return
	}
	before := l.mu.cluster.Views()
	l.mu.cluster.Advance(textbook.Tick)
	changed := false
	for i, v := range l.mu.cluster.Views() {
		s := l.mu.slots[i]
		if !s.alive {
			continue
		}
		if v != before[i] {
			changed = true
		}
		var err error
		switch {
		case v.Leads() && !v.Frozen && s.proc == nil:
			l.sayLocked("node", s.name, false, "is elected, and begins to write")
			err = l.launchLocked(s)
		case !v.Leads() && s.proc != nil:
			l.sayLocked("node", s.name, false, "leads no more, and stops writing")
			err = l.endProcessLocked(s)
		default:
			continue
		}
		changed = true
		if err != nil {
			l.mu.problem = err.Error()
		}
	}
	if changed {
		l.changedLocked()
	}
}
