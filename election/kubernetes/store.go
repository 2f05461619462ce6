package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
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
	still  *standstill.Clock

	mu    sync.Mutex
	lives map[string]*life // that were begun here and have not ended
}

var (
	_ kv.Store   = (*store)(nil)
	_ kv.Checker = (*store)(nil)
)

func newStore(a *api, prefix, proxy string, now func() time.Duration) *store {
	return &store{api: a, prefix: prefix, proxy: proxy, still: standstill.New(now), lives: map[string]*life{}}
}

// sighted notes what an object is now.
func (s *store) sighted(o *lease) {
	s.still.See(o.Metadata.Name, standstill.Version{ID: o.Metadata.ResourceVersion, Holder: o.holder(), Write: o.note(noteWrite)})
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
	s.sighted(&o)
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
	s.sighted(&written)
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

// recordOf returns what an object is, without the marker.
func recordOf(o *lease) (standstill.Record, error) {
	version, err := o.award()
	return standstill.Record{
		Lease: o.note(noteKey), ID: o.Metadata.ResourceVersion, TTL: o.ttl(),
		Entry: kv.Entry{Record: []byte(o.note(noteRecord)), Version: version, Life: o.holder(), Basis: o},
	}, err
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
	var e kv.Entry
	if o != nil {
		r, err := recordOf(o)
		if err != nil {
			return kv.Entry{}, err
		}
		e = s.still.Entry(o.Metadata.Name, r)
	}
	e.Marker = marker
	return e, nil
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

// Position implements kv.Store. The resourceVersion of an object says when it was written last, and
// that of a list may be from a cache. So it writes the marker's object, without another marker.
func (s *store) Position(ctx context.Context) (marker string, version int64, err error) {
	for range conflicts {
		old, err := s.get(ctx, s.markerName())
		if err != nil || old == nil {
			return "", 0, err
		}
		o := s.object(old, s.markerName())
		o.Metadata.Annotations[noteWrite] = rand.Text()
		written, err := s.write(ctx, old, o)
		if errors.Is(err, kv.ErrConflict) {
			continue
		}
		if err != nil {
			return "", 0, err
		}
		version, err = written.version()
		return written.note(noteMarker), version, err
	}
	return "", 0, fmt.Errorf("write %s: %w", s.markerName(), kv.ErrConflict)
}

// Check implements kv.Checker: it tries to create and to update a lease, without any effect.
func (s *store) Check(ctx context.Context) error {
	if err := s.looks(ctx); err != nil {
		return err
	}
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

// looks tries what a watch needs.
func (s *store) looks(ctx context.Context) error {
	var found list
	query := url.Values{"labelSelector": {labelPrefix + "=" + s.prefix}, "limit": {"1"}}
	if err := s.api.do(ctx, request{verb: "list", method: http.MethodGet, query: query, into: &found}); err != nil {
		return err
	}
	query = url.Values{"labelSelector": query["labelSelector"], "watch": {"true"}, "timeoutSeconds": {"1"}, "resourceVersion": {found.Metadata.ResourceVersion}}
	r := request{verb: "watch", method: http.MethodGet, query: query}
	return s.api.repeat(ctx, r, func(with sent) error {
		answer, err := s.api.send(ctx, r, with)
		if err != nil {
			return err
		}
		return answer.Body.Close() // that it begins is enough
	})
}

// Close implements kv.Store.
func (s *store) Close() error {
	s.api.close()
	return nil
}
