package pgtls

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/fencepost/fencepost/proxy/netloop"
)

// recordHeaderLen is the length of a TLS record's header; its last two bytes
// are the length of what follows.
const recordHeaderLen = 5

// errNothing is what a recordReader returns that does not wait. A tls.Conn reads on after it, because it
// says that it is temporary.
var errNothing = os.ErrDeadlineExceeded

// recordReader hands a tls.Conn the peer's bytes at most up to the end of one record. So all that the tls.Conn holds
// back is that record's rest, and whether anything is pending is known. Only the goroutine that reads uses it.
type recordReader struct {
	below netloop.Conn
	ahead []byte // read past the end of a record
	head  [recordHeaderLen]byte
	have  int  // bytes of head that were handed out; 0 between records
	left  int  // bytes of the record that are still to come, once head is whole
	dry   bool // Read returns nothing for now

	room    *[readSize]byte // of ahead, while Read does not wait; nil otherwise
	drained bool            // the connection had no more, since try
	ended   int             // how many ends of records were handed out, since try
	tries   time.Time       // when try was called
	since   time.Time       // a time at or before which what is pending was read, if something is
}

// readSize bounds what is read from the connection at once, in bytes: a record of the longest, and its header and tag.
const readSize = longestRecord + 256

// maxRecords is how many records are handed out at most between try and tried. It bounds how long a peer can hold up an
// event loop, by records of one byte, by changes of keys, or by a long message.
const maxRecords = 64

// rooms are used by the connections of an event loop in turn, of which one is served at a time.
var rooms = sync.Pool{New: func() any { return new([readSize]byte) }}

// try has Read not wait, until tried is called. It returns a time at or before which what is pending was read, zero if
// nothing is.
func (r *recordReader) try() (since time.Time) {
	r.room = rooms.Get().(*[readSize]byte)
	r.drained, r.ended, r.tries = false, 0, time.Now()
	if !r.pending() {
		r.since = time.Time{}
	}
	return r.since
}

// over reports whether nothing is left to be read, since try.
func (r *recordReader) over() bool { return r.drained && !r.pending() }

// stopped reports whether Read returns nothing because of maxRecords, while something may be left.
func (r *recordReader) stopped() bool { return r.ended >= maxRecords && !r.over() }

// tried keeps what was read ahead.
func (r *recordReader) tried() {
	if len(r.ahead) > 0 {
		r.ahead = append([]byte(nil), r.ahead...)
	} else {
		r.ahead = nil
	}
	rooms.Put(r.room)
	r.room = nil
	if r.ended > 0 || r.since.IsZero() {
		r.since = r.tries
	}
}

// pending reports whether a part of a record was read, or something after one.
func (r *recordReader) pending() bool { return r.have > 0 || len(r.ahead) > 0 }

func (r *recordReader) Read(b []byte) (int, error) {
	if r.dry || r.room != nil && r.ended >= maxRecords {
		return 0, errNothing
	}
	if len(r.ahead) == 0 && r.room == nil {
		n, err := r.below.Read(b)
		m := r.advance(b[:n])
		if m < n {
			r.ahead, err = append([]byte(nil), b[m:n]...), nil
		}
		r.since = time.Now()
		return m, err
	}
	if len(r.ahead) == 0 {
		if r.drained {
			return 0, errNothing
		}
		n, err := r.below.TryRead(r.room[:])
		switch {
		case err == netloop.ErrAgain:
			r.drained = true
			return 0, errNothing
		case err != nil:
			return 0, err
		}
		r.ahead, r.drained = r.room[:n], n < len(r.room)
	}
	b = b[:min(len(b), len(r.ahead))]
	n := r.advance(r.ahead[:len(b)])
	copy(b, r.ahead[:n])
	r.ahead = r.ahead[n:]
	return n, nil
}

// advance counts b as handed out, up to the end of the record, and returns how
// many bytes that is.
func (r *recordReader) advance(b []byte) int {
	n := 0
	for n < len(b) {
		if r.have < recordHeaderLen {
			k := copy(r.head[r.have:], b[n:])
			r.have, n = r.have+k, n+k
			if r.have < recordHeaderLen {
				return n
			}
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
		}
		k := min(r.left, len(b)-n)
		r.left, n = r.left-k, n+k
		if r.left == 0 {
			r.have = 0
			r.ended++
			return n
		}
	}
	return n
}

// recordWriter takes the records that a tls.Conn writes. During the handshake it writes them. After it, it collects
// them, so that a tls.Conn never waits while it holds its locks: its reading side writes, too, when the peer asks for
// new keys. push and flush send what was collected.
type recordWriter struct {
	below netloop.Conn

	collect bool // set before a second goroutine uses it

	mu       sync.Mutex // not held while blocking
	out      *[]byte    // what was collected; nil if nothing is
	sent     int        // bytes of out
	flushing bool       // a goroutine sends what was collected before out
	failed   error      // of the connection; what was collected is lost
}

// maxUnsent bounds what is collected while the peer does not read, in bytes. A write adds at most sendAt and a record.
// The rest is for the answers to a peer that asks for new keys again and again.
const maxUnsent = 4 * sendAt

// errUnsent ends a connection of which the peer reads nothing.
var errUnsent = errors.New("the peer asks for new keys, and reads nothing")

// outs are what recordWriters collect in.
var outs = sync.Pool{New: func() any {
	b := make([]byte, 0, sendAt+longestRecord)
	return &b
}}

func (w *recordWriter) Write(b []byte) (int, error) {
	if !w.collect {
		return w.below.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed != nil {
		return 0, w.failed
	}
	if w.out == nil {
		w.out = outs.Get().(*[]byte)
	}
	if len(*w.out)+len(b) > maxUnsent {
		return 0, errUnsent
	}
	*w.out = append(*w.out, b...)
	return len(b), nil
}

// size is how many bytes are to be sent.
func (w *recordWriter) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		return 0
	}
	return len(*w.out) - w.sent
}

// push sends what the connection takes without waiting. It returns netloop.ErrAgain if something is left.
func (w *recordWriter) push() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.failed != nil:
		return w.failed
	case w.flushing:
		return netloop.ErrAgain
	case w.out == nil:
		return nil
	}
	for w.sent < len(*w.out) {
		n, err := w.below.TryWrite((*w.out)[w.sent:])
		if w.sent += n; err != nil {
			if err != netloop.ErrAgain {
				w.failed = err
			}
			return err
		}
	}
	free(w.out)
	w.out, w.sent = nil, 0
	return nil
}

// flush sends all that was collected. If another goroutine does so already, it returns at once.
func (w *recordWriter) flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.failed == nil && w.out != nil && !w.flushing {
		out, sent := w.out, w.sent
		w.out, w.sent, w.flushing = nil, 0, true
		w.mu.Unlock()
		_, err := w.below.Write((*out)[sent:])
		free(out)
		w.mu.Lock()
		w.failed, w.flushing = err, false
	}
	return w.failed
}

// free gives back what was collected in.
func free(out *[]byte) {
	if cap(*out) > 2*sendAt {
		return
	}
	*out = (*out)[:0]
	outs.Put(out)
}
