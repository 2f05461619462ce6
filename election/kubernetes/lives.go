package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
)

// life is one term, or one request for one.
type life struct {
	id  string
	ttl time.Duration

	// turn is held by the one call that uses what follows.
	turn   chan struct{}
	stage  stage
	key    string
	marker string // under which the lease was asked for
	marked bool   // the marker has been read again since
	award  int64
	record []byte
	basis  *lease // what the award replaces; nil for a new object
	object *lease // as it was last written or read
}

// stage says what a life has come to.
type stage uint8

const (
	begun   stage = iota // nothing was asked for with it, or what was has been refused
	asked                // an award was asked for, and may still arrive
	awarded              // it holds an object, or held one
	ended                // nothing may be asked for with it any more
)

// enter waits for the turn to use a life.
func (l *life) enter(ctx context.Context) error {
	select {
	case l.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *life) leave() { <-l.turn }

func (s *store) life(id string) *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lives[id]
}

func (s *store) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lives, id)
}

// Begin implements kv.Store. The API server learns of a life when it asks for a lease.
func (s *store) Begin(_ context.Context, ttl time.Duration) (kv.Life, error) {
	l := &life{id: s.proxy + "_" + rand.Text(), ttl: ttl, turn: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[l.id] = l
	return kv.Life{ID: l.id, TTL: ttl}, nil
}

func over(id string) error { return fmt.Errorf("%w: the life %s is over", election.ErrLost, id) }

// mark reads the marker again after an award. If it is another one, it takes the award back and
// returns kv.ErrConflict. The caller has the turn.
func (s *store) mark(ctx context.Context, l *life) error {
	if l.marked {
		return nil
	}
	marker, err := s.markerNow(ctx)
	if err != nil {
		return err
	}
	if marker == l.marker {
		l.marked = true
		return nil
	}
	if err := s.clear(ctx, l.id, s.nameOf(l.key), l); err != nil {
		return err
	}
	l.stage = ended
	return kv.ErrConflict
}

// Beat implements kv.Store. The answer to the write proves that the lease is held: nobody has
// written the object since this life did.
func (s *store) Beat(ctx context.Context, _, id string) error {
	l := s.life(id)
	if l == nil {
		return over(id)
	}
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.leave()
	if l.stage != asked && l.stage != awarded {
		return over(id)
	}
	var err error
	for i := range tries {
		if err = s.beatIn(ctx, l, tries-i); err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return err
}

// beatIn renews a lease within the part of the time that is left for one of so many attempts.
func (s *store) beatIn(ctx context.Context, l *life, attempts int) error {
	if end, ok := ctx.Deadline(); ok {
		part, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(attempts))
		defer cancel()
		ctx = part
	}
	for range conflicts {
		if l.object == nil {
			if err := s.reread(ctx, l); err != nil {
				return err
			}
		}
		if err := s.mark(ctx, l); errors.Is(err, kv.ErrConflict) {
			return fmt.Errorf("%w: a new generation began while it was awarded", election.ErrLost)
		} else if err != nil {
			return err
		}
		o, err := s.write(ctx, l.object, s.next(l.object, l.key, change{wroteRenewal, l.record, l.id, l.ttl, l.award}))
		if err == nil {
			l.object = o
			return nil
		}
		if !errors.Is(err, kv.ErrConflict) {
			return err
		}
		l.object = nil // whoever has written it, it may still be held
	}
	return fmt.Errorf("renew %s: %w", s.nameOf(l.key), kv.ErrConflict)
}

// reread reads the object of a life again, and returns election.ErrLost unless it holds it.
func (s *store) reread(ctx context.Context, l *life) error {
	o, err := s.get(ctx, s.nameOf(l.key))
	switch {
	case err != nil:
		return err
	case o == nil && l.stage == asked:
		return fmt.Errorf("%s is not there: its award may still arrive", s.nameOf(l.key))
	case o == nil:
		return fmt.Errorf("%w: the object %s was deleted", election.ErrLost, s.nameOf(l.key))
	case o.holder() != l.id:
		return fmt.Errorf("%w: somebody else has written the object %s", election.ErrLost, o.Metadata.Name)
	}
	if l.stage == asked { // the answer to the award was lost
		if l.award, err = o.award(); err != nil {
			return err
		}
		l.stage = awarded
	}
	l.object = o
	return nil
}

// End implements kv.Store.
func (s *store) End(ctx context.Context, id string) error {
	l := s.life(id)
	if l == nil { // of an earlier run, or of another proxy
		if name := s.still.HeldBy(id); name != "" {
			return s.clear(ctx, id, name, nil)
		}
		return nil
	}
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.leave()
	if l.stage == asked || l.stage == awarded {
		if err := s.clear(ctx, id, s.nameOf(l.key), l); err != nil {
			return err
		}
	}
	l.stage = ended
	s.forget(id)
	return nil
}

// clear takes an object from a life that may hold it. l is the life if it began here: what was
// asked for with it and has not arrived is refused then, because the object has another version.
// The caller has its turn.
func (s *store) clear(ctx context.Context, id, name string, l *life) error {
	for range conflicts {
		o, err := s.get(ctx, name)
		if err != nil {
			return err
		}
		late := l != nil && l.stage == asked
		switch {
		case o == nil && late && l.basis == nil: // a new object, which may still arrive
			_, err = s.write(ctx, nil, s.next(nil, l.key, change{what: wroteEnd}))
		case o == nil:
			return nil
		case o.holder() == id, late && l.basis != nil && o.Metadata.ResourceVersion == l.basis.Metadata.ResourceVersion:
			_, err = s.write(ctx, o, s.emptied(o))
		default:
			return nil
		}
		if !errors.Is(err, kv.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("end the lease %s: %w", name, kv.ErrConflict)
}

// emptied returns the object without a holder, and otherwise as it is.
func (s *store) emptied(o *lease) *lease {
	n := s.object(o, o.Metadata.Name)
	notes := n.Metadata.Annotations
	if award, err := o.award(); err == nil {
		notes[noteAward] = strconv.FormatInt(award, 10)
	}
	notes[noteLast], notes[noteWrite] = wroteEnd, rand.Text()
	n.Spec.HolderIdentity = ""
	delete(notes, noteLife)
	return n
}
