package protocol

// upstream is how far the client's bytes were taken. It begins with the first byte after
// the startup, and ends with its phase.
type upstream struct {
	phase   phase
	body    passthrough // of the message that was taken last
	wants   int         // with NeedMore: how long the next message is, as far as its header says
	partial bool        // some bytes were not taken, and come again
}
