package proxy

import (
	"bytes"
	"io"
	"testing"
)

// reads is a reader that gets each piece in one call, as far as there is room, and shows how much room it had.
type reads struct {
	pieces [][]byte
	rooms  []int
}

func (r *reads) Read(b []byte) (int, error) {
	r.rooms = append(r.rooms, len(b))
	if len(r.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.pieces[0])
	if r.pieces[0] = r.pieces[0][n:]; len(r.pieces[0]) == 0 {
		r.pieces = r.pieces[1:]
	}
	return n, nil
}

// TestABufferThatWaitsHasLittleRoom: a session under TLS waits inside Read. It has much room there only if much has come,
// or something is left.
func TestABufferThatWaitsHasLittleRoom(t *testing.T) {
	t.Parallel()
	short, long := bytes.Repeat([]byte("s"), 10), bytes.Repeat([]byte("l"), bufferSize/2)
	from := &reads{pieces: [][]byte{short, short, long, short, long, short}}
	var b buffer
	step := func(room, finish int, want []byte) {
		t.Helper()
		n, err := b.read(from)
		if err != nil || from.rooms[len(from.rooms)-1] != room || !bytes.Equal(b.bytes(), want) {
			t.Fatalf("%d bytes, %v, with room for %d: %d are there; want room for %d, and %d bytes", n, err, from.rooms[len(from.rooms)-1], b.have, room, len(want))
		}
		b.finish(finish)
	}
	step(fewBytes, 10, short)
	step(fewBytes, 4, short)
	step(bufferSize-6, len(long)+6, append([]byte("ssssss"), long...))
	step(bufferSize, 10, short)
	step(fewBytes, fewBytes, long[:fewBytes])
	step(bufferSize, len(long)-fewBytes, long[fewBytes:])
	step(bufferSize, 10, short)
	if n, err := b.read(from); n != 0 || err != io.EOF || b.memory != nil {
		t.Errorf("at the end: %d bytes, %v, %d bytes of memory; want EOF and none", n, err, len(b.memory))
	}
}
