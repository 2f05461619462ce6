package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
)

const (
	// tries is how often a renewal is sent until it is answered. The first is given up after this
	// part of the time that there is, as one that was sent over a dead connection must be.
	tries = 3
	// conflicts is how often a write is made again that somebody else's write has overtaken.
	conflicts = 10
)

// store is the kv.Store of one prefix in one namespace. Its lives are known to this proxy alone:
// the API server keeps nothing of them but the object that they hold.
type store struct {
	api    *api
	prefix string
	proxy  string
	still  *standstill

	mu    sync.Mutex
	lives map[string]*life // that were begun here and have not ended
}

var (
	_ kv.Store   = (*store)(nil)
	_ kv.Checker = (*store)(nil)
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

func newStore(a *api, prefix, proxy string, now func() time.Duration) *store {
	return &store{api: a, prefix: prefix, proxy: proxy, still: newStandstill(now), lives: map[string]*life{}}
}

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

// get reads an object, from a quorum. It returns nil if there is none.
func (s *store) get(ctx context.Context, name string) (*lease, error) {
	var o lease
	err := s.api.do(ctx, request{verb: "get", method: http.MethodGet, name: name, into: &o})
	if isStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.still.see(&o)
	return &o, nil
}

// write writes an object over basis, or a new one if basis is nil, and returns it as it is then.
// kv.ErrConflict means that it was not written, because there is something else by now.
func (s *store) write(ctx context.Context, basis, o *lease) (*lease, error) {
	var written lease
	r := request{verb: "update", method: http.MethodPut, name: o.Metadata.Name, body: o, into: &written}
	if basis == nil {
		r = request{verb: "create", method: http.MethodPost, body: o, into: &written}
	}
	err := s.api.do(ctx, r)
	switch {
	case isStatus(err, http.StatusConflict), basis != nil && isStatus(err, http.StatusNotFound):
		return nil, kv.ErrConflict
	case err != nil:
		return nil, err
	}
	s.still.see(&written)
	return &written, nil
}

// markerNow reads the marker, from a quorum.
func (s *store) markerNow(ctx context.Context) (string, error) {
	o, err := s.get(ctx, s.markerName())
	if err != nil || o == nil {
		return "", err
	}
	return o.note(noteMarker), nil
}

// entry returns what an object means, without the marker.
func (s *store) entry(o *lease) (kv.Entry, error) {
	if o == nil {
		return kv.Entry{}, nil
	}
	version, err := o.award()
	if err != nil {
		return kv.Entry{}, err
	}
	e := kv.Entry{Record: []byte(o.note(noteRecord)), Version: version, Basis: o}
	if life := o.holder(); life != "" && !s.still.free(o) {
		e.Life = life
	}
	return e, nil
}

// Read implements kv.Store.
func (s *store) Read(ctx context.Context, key string) (kv.Entry, error) {
	var o *lease
	var marker string
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { o, err = s.get(both, s.nameOf(key)); return err })
	group.Go(func() (err error) { marker, err = s.markerNow(both); return err })
	if err := group.Wait(); err != nil {
		return kv.Entry{}, err
	}
	e, err := s.entry(o)
	e.Marker = marker
	return e, err
}

// Begin implements kv.Store. The API server learns of a life when it asks for a lease.
func (s *store) Begin(_ context.Context, ttl time.Duration) (kv.Life, error) {
	l := &life{id: s.proxy + "_" + rand.Text(), ttl: ttl, turn: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives[l.id] = l
	return kv.Life{ID: l.id, TTL: ttl}, nil
}

// Swap implements kv.Store.
func (s *store) Swap(ctx context.Context, key string, old kv.Entry, record []byte, id string) (version int64, err error) {
	basis, _ := old.Basis.(*lease)
	if id == "" {
		o, err := s.write(ctx, basis, s.next(basis, key, change{what: wroteRecord, record: record}))
		if err != nil {
			return 0, err
		}
		return o.version()
	}
	l := s.life(id)
	if l == nil {
		return 0, over(id)
	}
	if err := l.enter(ctx); err != nil {
		return 0, err
	}
	defer l.leave()
	if l.stage != begun {
		return 0, over(id)
	}
	l.key, l.marker, l.record, l.basis, l.stage = key, old.Marker, record, basis, asked
	o, err := s.write(ctx, basis, s.next(basis, key, change{what: wroteAward, record: record, life: id, ttl: l.ttl}))
	switch {
	case errors.Is(err, kv.ErrConflict):
		l.stage = begun
		return 0, err
	case err != nil:
		return 0, err
	}
	if l.award, err = o.version(); err != nil {
		return 0, err
	}
	l.object, l.stage = o, awarded
	if err := s.mark(ctx, l); err != nil {
		return 0, err
	}
	return l.award, nil
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
		if name := s.still.heldBy(id); name != "" {
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

// Mark implements kv.Store.
func (s *store) Mark(ctx context.Context, marker string, replace bool) error {
	for range conflicts {
		old, err := s.get(ctx, s.markerName())
		if err != nil || old != nil && !replace {
			return err
		}
		o := s.object(old, s.markerName())
		o.Metadata.Annotations[noteMarker] = marker
		if _, err := s.write(ctx, old, o); !errors.Is(err, kv.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("write %s: %w", s.markerName(), kv.ErrConflict)
}

// Check implements kv.Checker: it tries to create and to update a lease, without any effect.
func (s *store) Check(ctx context.Context) error {
	o := s.object(nil, s.markerName())
	o.Metadata.Annotations[noteMarker] = rand.Text()
	err := s.api.do(ctx, request{verb: "create", method: http.MethodPost, query: dryRun, body: o})
	if err != nil && !isStatus(err, http.StatusConflict) {
		return err
	}
	old, err := s.get(ctx, s.markerName())
	if err != nil || old == nil {
		return err
	}
	o = s.object(old, s.markerName())
	o.Metadata.Annotations[noteWrite] = rand.Text()
	err = s.api.do(ctx, request{verb: "update", method: http.MethodPut, name: s.markerName(), query: dryRun, body: o})
	if isStatus(err, http.StatusConflict) {
		return nil
	}
	return err
}

// Close implements kv.Store.
func (s *store) Close() error {
	s.api.close()
	return nil
}
