package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// HeaderLen is the length of a message header: a type byte and a length that
// counts itself but not the type.
const HeaderLen = 5

// Limits of the server on what a client may send, by kind of message. They are
// PQ_LARGE_MESSAGE_LIMIT and PQ_SMALL_MESSAGE_LIMIT of PostgreSQL's pqcomm.h;
// lengths count themselves.
const (
	largeMessage = 1<<30 - 1
	smallMessage = 10000
)

// Codes that stand in place of a protocol version.
const (
	CancelRequestCode = 80877102
	SSLRequestCode    = 80877103
	GSSRequestCode    = 80877104
)

// maxName is the length, in bytes, of the longest name that the server keeps
// (NAMEDATALEN of PostgreSQL's pg_config_manual.h, less the NUL).
const maxName = 63

// CutName cuts a name as the server cuts one in a message: a database, a
// user, a prepared statement, a portal. It may cut a character in two; names in SQL are
// cut before it.
func CutName[T string | []byte](name T) T { return name[:min(len(name), maxName)] }

// ErrLength says that a peer sent a length that no message of its type can have.
var ErrLength = errors.New("invalid message length")

// Frame is one message header in a buffer.
type Frame struct {
	Type byte
	Size int // header and body
}

// PeekFrame reads the header at the start of b. ok is false while fewer than
// HeaderLen bytes have arrived.
func PeekFrame(b []byte) (f Frame, ok bool, err error) {
	if len(b) < HeaderLen {
		return Frame{}, false, nil
	}
	f = Frame{Type: b[0], Size: int(int32(binary.BigEndian.Uint32(b[1:]))) + 1}
	if f.Size < HeaderLen || f.Size > 1+largeMessage {
		return Frame{}, false, lengthError(f)
	}
	return f, true, nil
}

// lengthError is an ErrLength of this frame. As a type, it lets the compiler inline PeekFrame.
type lengthError Frame

func (e lengthError) Error() string {
	return fmt.Sprintf("%v %d of message %q", ErrLength, e.Size-1, e.Type)
}

func (e lengthError) Unwrap() error { return ErrLength }

// PeekClientFrame is PeekFrame with the limits that PostgreSQL puts on clients.
func PeekClientFrame(b []byte) (f Frame, ok bool, err error) {
	f, ok, err = PeekFrame(b)
	if err != nil || !ok {
		return f, ok, err
	}
	switch f.Type {
	case 'Q', 'P', 'B', 'F', 'd':
	default:
		if f.Size-1 > smallMessage {
			return Frame{}, false, lengthError(f)
		}
	}
	return f, true, nil
}

// CString returns the bytes of b before its first NUL, and what follows it.
func CString(b []byte) (s, rest []byte, ok bool) {
	if len(b) > 0 && b[0] == 0 { // as most names are
		return b[:0], b[1:], true
	}
	i := bytes.IndexByte(b, 0)
	if i < 0 {
		return nil, nil, false
	}
	return b[:i], b[i+1:], true
}
