package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/fencepost/fencepost/election/kv"
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
	s       *store
	objects map[string]*lease   // of leases, by name
	shown   map[string]kv.Entry // by name
	marker  string
}

// Watch implements kv.Store. It lists what there is, watches from there on, and lists again when
// the watch ends or what it rests on is too old.
func (s *store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	for short := 0; ; {
		v := &view{s: s, objects: map[string]*lease{}, shown: map[string]kv.Entry{}}
		since, err := v.list(ctx)
		if err != nil {
			return err
		}
		if err := v.show(see); err != nil {
			return err
		}
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
		v.take(o)
	}
	return all.Metadata.ResourceVersion, nil
}

// take notes an object as it is now. What is not Fencepost's is left out.
func (v *view) take(o *lease) {
	switch {
	case o.Metadata.Name == v.s.markerName():
		v.marker = o.note(noteMarker)
	case v.s.isOf(o):
		v.s.sighted(o)
		v.objects[o.Metadata.Name] = o
	}
}

// drop notes that an object was deleted, or no longer has the label.
func (v *view) drop(o *lease) {
	if o.Metadata.Name == v.s.markerName() {
		v.marker = ""
		return
	}
	delete(v.objects, o.Metadata.Name)
	v.s.still.Forget(o.Metadata.Name)
}

// show shows everything.
func (v *view) show(see func(kv.Snapshot)) error {
	s := kv.Snapshot{Marker: v.marker, Entries: make(map[string]kv.Entry, len(v.objects))}
	shown := make(map[string]kv.Entry, len(v.objects))
	for name, o := range v.objects {
		e, err := v.s.entry(o)
		if err != nil {
			return err
		}
		shown[name], s.Entries[o.note(noteKey)] = e, e
	}
	v.shown = shown
	see(s)
	return nil
}

// changed reports whether an object means something else than what was shown. A renewal changes
// nothing.
func (v *view) changed(name string) bool {
	was, known := v.shown[name]
	o, there := v.objects[name]
	if !known || !there {
		return known != there
	}
	is, err := v.s.entry(o)
	return err != nil || is.Version != was.Version || is.Life != was.Life || !bytes.Equal(is.Record, was.Record)
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
	timer := time.NewTimer(v.next())
	defer timer.Stop()
	for {
		var err error
		select {
		case e := <-events:
			err = v.applyAll(e, events, func(snapshot kv.Snapshot) {
				see(snapshot)
				timer.Reset(v.next())
			})
		case <-timer.C:
			err = v.lapse(see)
			timer.Reset(v.next())
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

// next returns the time until a lease that was shown as held has stood still for its TTL. A
// renewal makes it later, which shows when this time is over.
func (v *view) next() time.Duration {
	wait, now := time.Minute, v.s.still.Now()
	for name, e := range v.shown {
		o := v.objects[name]
		if e.Life == "" || o == nil {
			continue
		}
		if until, ok := v.s.still.Until(name, o.Metadata.ResourceVersion, o.ttl()); ok {
			wait = min(wait, until-now)
		}
	}
	return max(wait, time.Millisecond)
}

// lapse shows everything if a lease is free since then.
func (v *view) lapse(see func(kv.Snapshot)) error {
	for name := range v.objects {
		if v.changed(name) {
			return v.show(see)
		}
	}
	return nil
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
			return v.show(see)
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
	marker := v.marker
	switch e.Type {
	case "ADDED", "MODIFIED":
		v.take(&o)
	case "DELETED":
		v.drop(&o)
	default: // a bookmark
		return false, nil
	}
	return v.marker != marker || v.changed(o.Metadata.Name), nil
}
