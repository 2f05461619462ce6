package protocol

import (
	"strconv"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

// downstream is how far the server's bytes were taken, and what was made of them for the
// client. It begins with the first byte after the startup, and ends with its phase.
type downstream struct {
	phase    phase
	body     passthrough     // of the message that was taken last
	failed   bool            // the server has said ERROR since the last ReadyForQuery
	heldBack []byte          // a RowDescription that waits for what comes after it
	reported *fencing.Status // by which the client knows its role and epoch
	// What the current call has made, good until the next one.
	events []Event
	made   []byte // messages for the client
}

// reset begins with the next piece of the server's bytes.
func (d *downstream) reset() { d.events, d.made = d.events[:0], d.made[:0] }

// happens adds an event.
func (d *downstream) happens(e Event) { d.events = append(d.events, e) }

// refusal makes the error that says r.
func (d *downstream) refusal(r *fencing.Refusal) []byte {
	at := len(d.made)
	d.made = AppendRefusal(d.made, "ERROR", r)
	return d.made[at:]
}

// edited makes a message out of an error or a notice, with its fields edited.
func (d *downstream) edited(msg []byte, edit func(field byte, v []byte) ([]byte, bool)) []byte {
	at := len(d.made)
	d.made = wire.EditError(d.made, msg, edit)
	return d.made[at:]
}

// unhold returns the message that was held back, or nothing.
func (d *downstream) unhold() []byte {
	at := len(d.made)
	d.made, d.heldBack = append(d.made, d.heldBack...), d.heldBack[:0]
	return d.made[at:]
}

// report makes the parameters that have changed since the client was last told of them.
func (d *downstream) report(st *fencing.Status) []byte {
	if st == d.reported {
		return nil
	}
	at, was := len(d.made), d.reported
	if was == nil || shownRole(was) != shownRole(st) {
		d.made = wire.AppendParameterStatus(d.made, "fencepost.role", shownRole(st))
	}
	if was == nil || shownEpoch(was) != shownEpoch(st) {
		d.made = wire.AppendParameterStatus(d.made, "fencepost.epoch", strconv.FormatInt(int64(shownEpoch(st)), 10))
	}
	d.reported = st
	return d.made[at:]
}
