package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// watchSeconds is when the API server ends a watch by itself.
const watchSeconds = "10"

const (
	// leastWatch is how long a watch goes on unless it is ended in a hurry, as the API server does
	// to one that cannot keep up. Several such in a row are an error.
	leastWatch = 200 * time.Millisecond
	mostShort  = 5
	// ahead is how many events are taken from the API server before they are looked at.
	ahead = 1000
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
	*standstill.View
	s *store
}

// Watch implements kv.Store. It lists what there is, watches from there on, and lists again when
// the watch ends or what it rests on is too old.
func (s *store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	for short := 0; ; {
		v := &view{s.still.View(), s}
		since, err := v.list(ctx)
		if err != nil {
			return err
		}
		v.Show(see)
		began := time.Now()
		err = v.follow(ctx, since, see)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !isStatus(err, http.StatusGone):
			return err
		case time.Since(began) >= leastWatch:
			short = 0
			continue
		}
		if short++; short > mostShort {
			return fmt.Errorf("watch leases: %s ends watches at once: %w", s.api.name, errors.Join(err, io.ErrUnexpectedEOF))
		}
		timer := time.NewTimer(time.Duration(short) * leastWatch / 4)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (s *store) selector() url.Values {
	return url.Values{"labelSelector": {labelPrefix + "=" + s.prefix}}
}

// list reads everything, and returns since when a watch has to follow.
func (v *view) list(ctx context.Context) (since string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var all list
	if err := v.s.api.do(ctx, request{verb: "list", method: http.MethodGet, query: v.s.selector(), into: &all}); err != nil {
		return "", err
	}
	v.s.still.Hear()
	for _, o := range all.Items {
		if _, err := v.take(o); err != nil {
			return "", err
		}
	}
	return all.Metadata.ResourceVersion, nil
}

// take notes an object as it is now, and reports whether that matters. What is not Fencepost's is left
// out.
func (v *view) take(o *lease) (changed bool, err error) {
	switch {
	case o.Metadata.Name == v.s.markerName():
		return v.mark(o.note(noteMarker)), nil
	case v.s.isOf(o):
		r, err := recordOf(o)
		if err != nil {
			return false, err
		}
		v.s.sighted(o)
		return v.Put(o.Metadata.Name, r), nil
	}
	return false, nil
}

// mark notes the marker, and reports whether it is another one.
func (v *view) mark(marker string) (changed bool) {
	changed, v.Marker = v.Marker != marker, marker
	return changed
}

// drop notes that an object was deleted, or no longer has the label, and reports whether that matters.
func (v *view) drop(o *lease) (changed bool) {
	if o.Metadata.Name == v.s.markerName() {
		return v.mark("")
	}
	v.s.still.Forget(o.Metadata.Name)
	return v.Drop(o.Metadata.Name)
}

// follow shows each change until the watch ends.
func (v *view) follow(ctx context.Context, since string, see func(kv.Snapshot)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query := v.s.selector()
	query.Set("watch", "true")
	query.Set("resourceVersion", since)
	query.Set("timeoutSeconds", watchSeconds)
	events, ended := make(chan event, ahead), make(chan error, 1)
	go func() {
		ended <- v.s.api.stream(ctx, request{verb: "watch", method: http.MethodGet, query: query}, events)
	}()
	timer := time.NewTimer(v.Next())
	defer timer.Stop()
	for {
		var err error
		select {
		case e := <-events:
			err = v.applyAll(e, events, func(snapshot kv.Snapshot) {
				see(snapshot)
				timer.Reset(v.Next())
			})
		case <-timer.C:
			if v.Lapsed() {
				v.Show(see)
			}
			timer.Reset(v.Next())
		case err := <-ended: // what has come before it is in the next list
			return err
		}
		if err != nil {
			cancel()
			<-ended
			return err
		}
	}
}

// applyAll takes an event, and those that have come after it, and shows everything if that matters.
func (v *view) applyAll(e event, more <-chan event, see func(kv.Snapshot)) error {
	matters := false
	for {
		changed, err := v.apply(e)
		if err != nil {
			return err
		}
		matters = matters || changed
		select {
		case e = <-more:
			continue
		default:
		}
		if matters {
			v.Show(see)
		}
		return nil
	}
}

// apply takes an event, and reports whether it matters.
func (v *view) apply(e event) (changed bool, err error) {
	if e.Type == "ERROR" {
		return false, failure(e.Object)
	}
	var o lease
	if err := json.Unmarshal(e.Object, &o); err != nil {
		return false, fmt.Errorf("watch leases: decode an event: %w", err)
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		return v.take(&o)
	case "DELETED":
		return v.drop(&o), nil
	}
	return false, nil // a bookmark
}
