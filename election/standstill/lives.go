package standstill

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/election/kv"
)

// life is one term, or one request for one.
type life struct {
	id  string
	ttl time.Duration

	turn  chan struct{} // held by the one call that uses what follows
	stage stage
	request
	marked bool    // the marker has been read again since the award
	index  int64   // of the award
	held   *Stored // the record as it was last written or read; nil if it must be read
}

// request is what was asked for with a life.
type request struct {
	key    string
	marker string // under which the lease was asked for
	text   []byte
	basis  *Stored // what the award replaces; nil if there was no record
}

// stage says what a life has come to.
type stage uint8

const (
	begun   stage = iota // nothing was asked for with it, or what was has been refused
	asked                // an award was asked for, and may still arrive
	awarded              // it holds a record, or held one
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

func (s *Store) life(id string) *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lives[id]
}

// Begin implements kv.Store. The service learns of a life when it asks for a lease.
func (s *Store) Begin(_ context.Context, ttl time.Duration) (kv.Life, error) {
	l := &life{id: s.proxy + "_" + rand.Text(), ttl: max(ttl, s.leastTTL), turn: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[l.id] = l
	return kv.Life{ID: l.id, TTL: l.ttl}, nil
}

// award asks for a lease. The caller has the turn, here and below.
func (s *Store) award(ctx context.Context, l *life, r request) (version int64, err error) {
	if l.stage != begun {
		return 0, over(l.id)
	}
	l.request, l.stage = r, asked
	l.held, err = s.put(ctx, r.basis, Record{Key: r.key, Text: r.text, Life: l.id, TTL: l.ttl})
	switch {
	case isConflict(err):
		l.stage = begun
		return 0, err
	case err != nil:
		return 0, err
	}
	l.index, l.stage = l.held.Version, awarded
	return l.index, s.compareMarker(ctx, l)
}

// compareMarker reads the marker again after an award. If it is another one, it takes the award back and
// returns kv.ErrConflict.
func (s *Store) compareMarker(ctx context.Context, l *life) error {
	if l.marked {
		return nil
	}
	_, marker, err := s.get(ctx, l.key)
	if err != nil {
		return err
	}
	if marker == l.marker {
		l.marked = true
		return nil
	}
	if err := s.clear(ctx, l); err != nil {
		return err
	}
	l.stage = ended
	return kv.ErrConflict
}

// Beat implements kv.Store.
func (s *Store) Beat(ctx context.Context, _, id string) error {
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
	for range conflicts {
		if err := s.find(ctx, l); err != nil {
			return err
		}
		if err := s.compareMarker(ctx, l); isConflict(err) {
			return lost("a new generation began while it was awarded")
		} else if err != nil {
			return err
		}
		written, err := s.put(ctx, l.held, Record{Key: l.key, Text: l.text, Life: id, TTL: l.ttl, Award: l.index})
		l.held = written // nil after an error: whoever has written the record, it may still be held
		if !isConflict(err) {
			return err
		}
	}
	return fmt.Errorf("renew %s: %w", l.key, kv.ErrConflict)
}

// find makes sure that the record of a life is known. It returns elector.ErrLost unless the life holds it.
func (s *Store) find(ctx context.Context, l *life) error {
	if l.held != nil {
		return nil
	}
	r, _, err := s.get(ctx, l.key)
	switch {
	case err != nil:
		return err
	case r == nil && l.stage == asked:
		return fmt.Errorf("%s is not there: its award may still arrive", l.key)
	case r == nil:
		return lost("its record was deleted")
	case r.Life != l.id:
		return lost("somebody else has written its record")
	}
	if l.stage == asked { // the answer to the award was lost
		l.index, l.stage = r.award(), awarded
	}
	l.held = r
	return nil
}

// End implements kv.Store. A life that is not known holds nothing, or is another proxy's.
func (s *Store) End(ctx context.Context, id string) error {
	l := s.life(id)
	if l == nil {
		return nil
	}
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.leave()
	if l.stage == asked || l.stage == awarded {
		if err := s.clear(ctx, l); err != nil {
			return err
		}
	}
	l.stage = ended
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lives, id)
	return nil
}

// clear takes the record from a life that may hold it, and writes what a request of the life that has not
// arrived yet could replace.
func (s *Store) clear(ctx context.Context, l *life) error {
	for range conflicts {
		r, _, err := s.get(ctx, l.key)
		if err != nil {
			return err
		}
		late := l.stage == asked
		switch {
		case r == nil && late && l.basis == nil:
			_, err = s.put(ctx, nil, Record{Key: l.key})
		case r == nil:
			return nil
		case r.Life == l.id, late && l.basis != nil && r.Version == l.basis.Version:
			_, err = s.put(ctx, r, Record{Key: l.key, Text: r.Text, Award: r.award()})
		default:
			return nil
		}
		if !isConflict(err) {
			return err
		}
	}
	return fmt.Errorf("end the lease %s: %w", l.key, kv.ErrConflict)
}
