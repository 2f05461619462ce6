package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// conflicts is how often a write is made again that someone else's write has overtaken.
const conflicts = 10

// service is one prefix in one namespace.
type service struct {
	api    *api
	prefix string
}

var (
	_ standstill.Service = (*service)(nil)
	_ kv.Checker         = (*service)(nil)
)

// get reads an object, from a quorum. It returns nil if there is none.
func (s *service) get(ctx context.Context, name string) (*lease, error) {
	var o lease
	err := s.api.do(ctx, request{verb: "get", method: http.MethodGet, name: name, into: &o})
	switch {
	case isStatus(err, http.StatusNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &o, nil
}

// write writes an object over basis, or a new one if basis is nil, and returns it as it is then.
// kv.ErrConflict means that it was not written, because there is something else by now.
func (s *service) write(ctx context.Context, basis, o *lease) (*lease, error) {
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
	return &written, nil
}

// Get implements standstill.Service.
func (s *service) Get(ctx context.Context, key string) (stored *standstill.Stored, marker string, err error) {
	var o, generation *lease
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) { o, err = s.get(both, s.nameOf(key)); return err })
	group.Go(func() (err error) { generation, err = s.get(both, s.markerName()); return err })
	if err := group.Wait(); err != nil {
		return nil, "", err
	}
	if generation != nil {
		marker = generation.note(noteMarker)
	}
	if o != nil {
		stored, err = o.stored()
	}
	return stored, marker, err
}

// Put implements standstill.Service.
func (s *service) Put(ctx context.Context, old *standstill.Stored, r standstill.Record) (*standstill.Stored, error) {
	var basis *lease
	if old != nil {
		basis, _ = old.Basis.(*lease)
	}
	o, err := s.write(ctx, basis, s.next(basis, r))
	if err != nil {
		return nil, err
	}
	return o.stored()
}

// Mark implements standstill.Service.
func (s *service) Mark(ctx context.Context, marker string, replace bool) error {
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

// Position implements standstill.Service. The resourceVersion of an object says when it was written last, and
// that of a list may be from a cache. So it writes the marker's object, without another marker.
func (s *service) Position(ctx context.Context) (marker string, version int64, err error) {
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
func (s *service) Check(ctx context.Context) error {
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
func (s *service) looks(ctx context.Context) error {
	var found list
	query := s.selector()
	query.Set("limit", "1")
	if err := s.api.do(ctx, request{verb: "list", method: http.MethodGet, query: query, into: &found}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, err := s.api.open(ctx, s.watchSince(found.Metadata.ResourceVersion, "1"))
	if err != nil {
		return err
	}
	return body.Close() // that it begins is enough
}

func (s *service) selector() url.Values {
	return url.Values{"labelSelector": {labelPrefix + "=" + s.prefix}}
}

// watchSince asks for what changes after a version.
func (s *service) watchSince(version, seconds string) request {
	query := s.selector()
	query.Set("watch", "true")
	query.Set("resourceVersion", version)
	query.Set("timeoutSeconds", seconds)
	return request{verb: "watch", method: http.MethodGet, query: query}
}

// Close implements standstill.Service.
func (s *service) Close() error {
	s.api.config.close()
	return nil
}
