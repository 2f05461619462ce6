package oracle

import (
	"bytes"
	"encoding/binary"
)

// frame is one message from either side. Its body is valid until the next message.
type frame struct {
	typ  byte
	size int // of the body
	body []byte
}

// framer splits a stream into messages. It keeps only a limited part of each body.
type framer struct {
	most int
	rows bool // D is a DataRow, not a Describe
	head []byte
	now  frame
	left int // bytes of the body that are still to come
}

// write processes bytes and calls take for each message that they complete.
func (f *framer) write(b []byte, take func(frame)) {
	for len(b) > 0 {
		if len(f.head) < 5 {
			n := min(5-len(f.head), len(b))
			f.head, b = append(f.head, b[:n]...), b[n:]
			if len(f.head) < 5 {
				return
			}
			f.left = int(int32(binary.BigEndian.Uint32(f.head[1:]))) - 4
			f.now = frame{typ: f.head[0], size: f.left, body: reuse(f.now.body)}
			if f.left < 0 { // the server closes the connection because of it
				f.now, f.left = frame{typ: 'X'}, 0
			}
		}
		n := min(f.left, len(b))
		if room := f.keeps() - len(f.now.body); room > 0 {
			f.now.body = append(f.now.body, b[:min(n, room)]...)
		}
		f.left, b = f.left-n, b[n:]
		if f.left == 0 {
			take(f.now)
			f.head = f.head[:0]
		}
	}
}

// keeps returns how many bytes of the body are kept. Rows and COPY data are only
// counted.
func (f *framer) keeps() int {
	if f.now.typ == 'd' || f.now.typ == 'D' && f.rows {
		return longestLine
	}
	return f.most
}

// reuse returns a buffer for its next use, or drops it if it has become large.
func reuse(b []byte) []byte {
	if cap(b) > 64<<10 {
		return nil
	}
	return b[:0]
}

// text returns the bytes of b before its first NUL, and what follows it.
func text(b []byte) (s, rest []byte, ok bool) {
	return bytes.Cut(b, []byte{0})
}
