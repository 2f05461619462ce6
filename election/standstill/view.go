package standstill

import (
	"bytes"
	"time"

	"github.com/fencepost/fencepost/election/kv"
)

// Record is a record as it was read.
type Record struct {
	Lease string        // its key in package kv
	Entry kv.Entry      // Life is the holder, also of a record that stands still
	ID    string        // of the version
	TTL   time.Duration // of the holder
}

// Entry returns what a record means, which has this key in the clock: nobody holds the lease if it has
// stood still for the TTL.
func (c *Clock) Entry(key string, r Record) kv.Entry {
	if r.Entry.Life != "" && c.Free(key, r.ID, r.TTL) {
		r.Entry.Life = ""
	}
	return r.Entry
}

// View is what a watch has shown, and what there is now. Keys are those of the clock.
type View struct {
	Marker  string
	clock   *Clock
	records map[string]Record
	shown   map[string]kv.Entry
}

// View returns a view that has shown nothing.
func (c *Clock) View() *View { return &View{clock: c, records: map[string]Record{}} }

// Put notes what a record is now, and reports whether it means something else than what was shown. A
// renewal does not.
func (v *View) Put(key string, r Record) (changed bool) {
	v.records[key] = r
	return v.changed(key)
}

// Drop notes that there is no such record any more, and reports whether it was shown.
func (v *View) Drop(key string) (changed bool) {
	delete(v.records, key)
	_, shown := v.shown[key]
	return shown
}

func (v *View) changed(key string) bool {
	was, shown := v.shown[key]
	is := v.clock.Entry(key, v.records[key])
	return !shown || is.Version != was.Version || is.Life != was.Life || !bytes.Equal(is.Record, was.Record)
}

// Lapsed reports whether a lease that was shown as held is free.
func (v *View) Lapsed() bool {
	for key := range v.records {
		if v.changed(key) {
			return true
		}
	}
	return false
}

// Show shows everything.
func (v *View) Show(see func(kv.Snapshot)) {
	s := kv.Snapshot{Marker: v.Marker, Entries: make(map[string]kv.Entry, len(v.records))}
	v.shown = make(map[string]kv.Entry, len(v.records))
	for key, r := range v.records {
		e := v.clock.Entry(key, r)
		v.shown[key], s.Entries[r.Lease] = e, e
	}
	see(s)
}

// Next returns the time until a lease that was shown as held has stood still for its TTL. A renewal
// makes it later, which shows when this time is over.
func (v *View) Next() time.Duration {
	wait, now := time.Minute, v.clock.now()
	for key, e := range v.shown {
		r := v.records[key]
		if until, ok := v.clock.Until(key, r.ID, r.TTL); ok && e.Life != "" {
			wait = min(wait, until-now)
		}
	}
	return max(wait, time.Millisecond)
}
