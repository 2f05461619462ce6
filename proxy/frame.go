package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// headerLen is the length of a message header: a type byte and a length that
// counts itself but not the type.
const headerLen = 5

// Limits of the server on what a client may send, by kind of message. They are
// PQ_LARGE_MESSAGE_LIMIT and PQ_SMALL_MESSAGE_LIMIT of PostgreSQL's pqcomm.h;
// lengths count themselves.
const (
	largeMessage = 1<<30 - 1
	smallMessage = 10000
)

// errFrame says that a peer sent a length that no message of its type can have.
var errFrame = errors.New("invalid message length")

// frame is one message header as it stands in a buffer.
type frame struct {
	typ  byte
	size int // header and body
}

// peekFrame reads the header at the start of b. ok is false while fewer than
// headerLen bytes are there.
func peekFrame(b []byte) (f frame, ok bool, err error) {
	if len(b) < headerLen {
		return frame{}, false, nil
	}
	n := int32(binary.BigEndian.Uint32(b[1:]))
	if n < 4 || n > largeMessage {
		return frame{}, false, fmt.Errorf("%w %d of message %q", errFrame, n, b[0])
	}
	return frame{typ: b[0], size: int(n) + 1}, true, nil
}

// clientFrame is peekFrame with the limits that PostgreSQL puts on clients.
func clientFrame(b []byte) (f frame, ok bool, err error) {
	f, ok, err = peekFrame(b)
	if err != nil || !ok {
		return f, ok, err
	}
	switch f.typ {
	case 'Q', 'P', 'B', 'F', 'd':
	default:
		if f.size-1 > smallMessage {
			return frame{}, false, fmt.Errorf("%w %d of message %q", errFrame, f.size-1, f.typ)
		}
	}
	return f, true, nil
}

// cstring returns the bytes of b before its first NUL, and what follows it.
func cstring(b []byte) (s, rest []byte, ok bool) {
	for i, c := range b {
		if c == 0 {
			return b[:i], b[i+1:], true
		}
	}
	return nil, nil, false
}
