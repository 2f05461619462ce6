package standstill

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost/election/kv"
)

// maxPending is how many changes are taken from a service before they are looked at. Those that have come
// meanwhile are shown together.
const maxPending = 1000

// Change is what a watch reports.
type Change struct {
	Marker  string
	All     bool      // Records are all that there are
	Records []*Stored // that have changed, at least
	Gone    []string  // keys of records that are no longer there
}

// view is what a watch has shown, and what there is now.
type view struct {
	s       *Store
	marker  string
	records map[string]*Stored
	shown   map[string]kv.Entry
}

// Watch implements kv.Store.
func (s *Store) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	changes, ended := make(chan Change, maxPending), make(chan error, 1)
	go func() {
		ended <- s.service.Watch(ctx, func(c Change) {
			select {
			case changes <- c:
			case <-ctx.Done():
			}
		})
	}()
	v := &view{s: s, records: map[string]*Stored{}}
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		matters := false
		select {
		case c := <-changes:
			matters = v.take(c)
			for range len(changes) {
				matters = v.take(<-changes) || matters
			}
		case <-timer.C:
			matters = v.lapsed()
		case err := <-ended:
			return err
		}
		if matters {
			v.show(see)
		}
		timer.Reset(v.next())
	}
}

// take notes what has changed, and reports whether it means something else than what was shown. A renewal
// does not.
func (v *view) take(c Change) (matters bool) {
	v.s.clock.serviceAnswered()
	matters = v.shown == nil || v.marker != c.Marker
	v.marker = c.Marker
	if c.All {
		c.Gone = slices.Collect(maps.Keys(v.records))
	}
	for _, key := range c.Gone {
		delete(v.records, key)
	}
	for _, r := range c.Records {
		v.s.sighted(r)
		v.records[r.Key] = r
		matters = v.changed(r) || matters
	}
	for _, key := range c.Gone {
		if v.records[key] == nil {
			v.s.clock.forget(key)
			_, shown := v.shown[key]
			matters = matters || shown
		}
	}
	return matters
}

// changed reports whether a record means something else than what was shown.
func (v *view) changed(r *Stored) bool {
	was, shown := v.shown[r.Key]
	is := v.s.entry(r)
	return !shown || is.Version != was.Version || is.Life != was.Life || !bytes.Equal(is.Record, was.Record)
}

// lapsed reports whether a lease that was shown as held is free.
func (v *view) lapsed() bool {
	for _, r := range v.records {
		if v.changed(r) {
			return true
		}
	}
	return false
}

// show shows everything.
func (v *view) show(see func(kv.Snapshot)) {
	v.shown = make(map[string]kv.Entry, len(v.records))
	s := kv.Snapshot{Marker: v.marker, Entries: make(map[string]kv.Entry, len(v.records))}
	for key, r := range v.records {
		e := v.s.entry(r)
		v.shown[key], s.Entries[key] = e, e
	}
	see(s)
}

// next returns the time until the record of a lease that was shown as held has not changed for its TTL. A renewal
// makes it later, which shows when this time is over.
func (v *view) next() time.Duration {
	wait, now := time.Minute, v.s.clock.now()
	for key, e := range v.shown {
		r := v.records[key]
		if r == nil || e.Life == "" {
			continue
		}
		if at, ok := v.s.clock.expiresAt(key, r.Write, r.ttl()); ok {
			wait = min(wait, at-now)
		}
	}
	return max(wait, time.Millisecond)
}
