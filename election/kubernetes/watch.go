package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/fencepost/fencepost/election/standstill"
)

const (
	// watchSeconds is when the API server ends a watch by itself.
	watchSeconds = "10"
	// listTimeout is a little less than package kv waits for, so that its error says why.
	listTimeout = 1800 * time.Millisecond
)

// event is one line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// view is what a watch has shown.
type view struct {
	s      *service
	marker string
	tell   func(standstill.Change)
}

// Watch implements standstill.Service. It lists what there is, and watches from there on. When the API server
// ends the watch, or no longer knows what it rests on, package kv begins another one.
func (s *service) Watch(ctx context.Context, tell func(standstill.Change)) error {
	v := &view{s: s, tell: tell}
	since, err := v.list(ctx)
	if err != nil {
		return err
	}
	r := s.watchSince(since, watchSeconds)
	body, err := s.api.open(ctx, r)
	if err != nil {
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var e event
		if err := lines.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				err = errors.New("the API server has ended the watch")
			}
			return s.api.failed(ctx, r, err)
		}
		if err := v.apply(e); err != nil {
			return err
		}
	}
}

// list reads everything, and returns since when a watch has to follow.
func (v *view) list(ctx context.Context) (since string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var all list
	if err := v.s.api.do(ctx, request{verb: "list", method: http.MethodGet, query: v.s.selector(), into: &all}); err != nil {
		return "", err
	}
	c := standstill.Change{All: true}
	for _, o := range all.Items {
		if o.Metadata.Name == v.s.markerName() {
			v.marker = o.note(noteMarker)
			continue
		}
		if c.Records, err = v.with(c.Records, o); err != nil {
			return "", err
		}
	}
	c.Marker = v.marker
	v.tell(c)
	return all.Metadata.ResourceVersion, nil
}

// with returns the records and that of an object. What is not Fencepost's is left out.
func (v *view) with(all []*standstill.Stored, o *lease) ([]*standstill.Stored, error) {
	if !v.s.isOf(o) {
		return all, nil
	}
	r, err := o.stored()
	return append(all, r), err
}

// apply applies an event.
func (v *view) apply(e event) (err error) {
	if e.Type == "ERROR" {
		return failure(e.Object)
	}
	var o lease
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return fmt.Errorf("watch leases: decode an event: %w", err)
	}
	var c standstill.Change
	switch marker := o.Metadata.Name == v.s.markerName(); {
	case e.Type == "DELETED" && marker:
		v.marker = ""
	case marker:
		v.marker = o.note(noteMarker)
	case e.Type == "DELETED":
		c.Gone = []string{o.note(noteKey)}
	default:
		if c.Records, err = v.with(nil, &o); err != nil {
			return err
		}
	}
	c.Marker = v.marker
	v.tell(c)
	return nil
}
