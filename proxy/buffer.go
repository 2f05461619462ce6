package proxy

import "sync"

// bufferSize is the size in bytes of a pump's buffer at first, which bounds one read.
const bufferSize = 16 << 10

// maxLoopBytes bounds how many bytes the event loop gives a session at once, so that one
// long message does not delay the other sessions.
const maxLoopBytes = 4 * bufferSize

// buffer holds what a pump has read and has not finished. It has memory of its own only from room to
// idle: the sessions of an event loop, of which one is served at a time, use the same memory in turn.
// So an idle session needs none, and what is read is still in the processor's cache when it is sent.
type buffer struct {
	memory []byte // nil if there is none
	have   int    // length of what was read into it
}

// spare are buffers of bufferSize that no one uses. What they hold is never read: it may be another
// session's.
var spare = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// bytes returns what was read.
func (b *buffer) bytes() []byte { return b.memory[:b.have] }

// room returns where the next read may put what it reads.
func (b *buffer) room() []byte {
	if b.memory == nil {
		b.memory = spare.Get().(*[bufferSize]byte)[:]
	}
	return b.memory[b.have:]
}

// full reports whether there is no room.
func (b *buffer) full() bool { return b.memory != nil && b.have == len(b.memory) }

// finish drops the first n bytes.
func (b *buffer) finish(n int) { b.have = copy(b.memory, b.memory[n:b.have]) }

// grow makes room, up to size bytes in all.
func (b *buffer) grow(size int) {
	next := make([]byte, size)
	copy(next, b.bytes())
	b.memory = next
}

// shrink gives back what a very long message needed, if nothing of it is left. It reports whether it did.
func (b *buffer) shrink() bool {
	if b.have > 0 || len(b.memory) <= maxLoopBytes {
		return false
	}
	b.memory = nil
	return true
}

// idle says that nothing will be read for a while, and that no one refers to what was read before.
// What has grown for a long message stays, because more of them are likely to come.
func (b *buffer) idle() {
	if b.have > 0 || len(b.memory) != bufferSize {
		return
	}
	spare.Put((*[bufferSize]byte)(b.memory))
	b.memory = nil
}
