package protocol

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
