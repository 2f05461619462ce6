package protocol

import (
	"strconv"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/wire"
)

// downstream is how far the server's bytes were taken, and what was made of them for the
// client. It begins with the first byte after the startup, and ends with its phase.
type downstream struct {
	phase    phase
	body     passthrough  // of the message that was taken last
	failed   bool         // the server has said ERROR since the last ReadyForQuery
	ahead    *failedAhead // in the client's block, which has failed by it; nil if there is none
	heldBack []byte       // a RowDescription or CommandComplete that waits for what comes after it
	doubt    doubt
	reported *fencing.Status // by which the client knows its role and epoch
	// What the current call has made, good until the next one.
	events []Event
	made   []byte // messages for the client
}

// doubt is what is not known of the Syncs behind a COPY that has failed.
type doubt struct {
	due    bool   // FromClient asks which of them are answered: see leavesDoubtful
	asked  bool   // the question of awaitSync was sent, and is not answered
	ready  []byte // the last ReadyForQuery that came since
	goesOn bool   // there was one before, so that the server goes on behind a Sync of the client's
}

// failedAhead is an error of what Fencepost has sent in a batch of its own. In a block, the check
// behind it fails only because the block has, so the client gets this error in place of that one.
type failedAhead struct {
	pe  wire.ServerError
	msg []byte
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

// complete makes a CommandComplete.
func (d *downstream) complete(tag string) []byte {
	at := len(d.made)
	d.made = wire.AppendCommandComplete(d.made, tag)
	return d.made[at:]
}

// edited makes a message out of an error or a notice, with its fields edited.
func (d *downstream) edited(msg []byte, edit func(field byte, v []byte) ([]byte, bool)) []byte {
	at := len(d.made)
	d.made = wire.EditError(d.made, msg, edit)
	return d.made[at:]
}

// holds reports whether a message is held back.
func (d *downstream) holds() bool { return len(d.heldBack) > 0 }

// unhold returns the message that was held back.
func (d *downstream) unhold() []byte {
	at := len(d.made)
	d.made, d.heldBack = append(d.made, d.heldBack...), d.heldBack[:0]
	return d.made[at:]
}

// report makes the parameters that have changed since the client was last told of them.
func (d *downstream) report(st *fencing.Status) []byte {
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

// upstream is how far the client's bytes were taken. It begins with the first byte after
// the startup, and ends with its phase.
type upstream struct {
	phase   phase
	body    passthrough // of the message that was taken last
	wants   int         // with NeedMore: how long the next message is, as far as its header says
	parsed  int         // bytes of texts that were parsed for those that came last
	partial bool        // some bytes were not taken, and come again
	flushed bool        // among the bytes that came last is a Flush
}

// passthrough follows the rest of a message of which only the start had come when it was
// dealt with. It begins with that start, and ends with the last byte of the message: each
// piece that comes until then meets the same fate as the start, and is not looked at.
type passthrough struct {
	left int  // bytes that are still to come
	drop bool // they are not sent on
}

// begin follows a message whose last left bytes have not come.
func (b *passthrough) begin(left int, drop bool) {
	if b.left > 0 {
		panic("protocol: a message begins inside another")
	}
	*b = passthrough{left, drop}
}

// inside reports that some of the message is still to come.
func (b *passthrough) inside() bool { return b.left > 0 }

// take takes as many of n bytes as belong to the message. drop says that they are not
// sent on.
func (b *passthrough) take(n int) (taken int, drop bool) {
	taken = min(b.left, n)
	b.left -= taken
	return taken, b.drop
}

// phase says whether anything more is sent on in one direction of a session. It begins
// open, and is left once, for good.
type phase struct {
	state phaseState
	err   error // of phaseEnded
}

type phaseState uint8

const (
	phaseOpen  phaseState = iota
	phaseMuted            // the rest is dropped: what was sent last ends the connection
	phaseEnded            // what the peer sent cannot be followed, which ends the session
)

// mute drops whatever comes from now on.
func (p *phase) mute() { p.leave(phaseMuted, nil) }

// end ends the session with an error.
func (p *phase) end(err error) { p.leave(phaseEnded, err) }

func (p *phase) leave(to phaseState, err error) {
	if p.state != phaseOpen {
		panic("protocol: a direction that is over goes on")
	}
	p.state, p.err = to, err
}

// muted reports that whatever comes is dropped.
func (p *phase) muted() bool { return p.state == phaseMuted }
