package gate

// largePlan is the size, in bytes, from which pieces are sent one by one:
// copying them into one would hold a large message twice.
const largePlan = 64 << 10

// Segments is what to send on of one buffer of input: ranges of it, and other
// bytes between them, in order.
type Segments struct {
	in       []byte
	from, to int // the range not yet in segs
	segs     [][]byte
}

// Reset drops all segments and begins with in.
func (s *Segments) Reset(in []byte) {
	clear(s.segs)
	s.in, s.from, s.to, s.segs = in, 0, 0, s.segs[:0]
}

// Forward sends on in[from:to]. Ranges must not overlap and must ascend.
func (s *Segments) Forward(from, to int) {
	if from == s.to && s.from < s.to {
		s.to = to
		return
	}
	s.flush()
	s.from, s.to = from, to
}

// Insert sends b, which must stay as it is until the plan was carried out.
func (s *Segments) Insert(b []byte) {
	if len(b) == 0 {
		return
	}
	s.flush()
	s.segs = append(s.segs, b)
}

func (s *Segments) flush() {
	if s.from < s.to {
		s.segs = append(s.segs, s.in[s.from:s.to])
	}
	s.from = s.to
}

// Bytes returns what to send as one slice. It copies only if there is more
// than one segment, into scratch, which it returns for the next use.
func (s *Segments) Bytes(scratch []byte) (out, next []byte) {
	s.flush()
	if len(s.segs) == 1 {
		return s.segs[0], scratch
	}
	scratch = scratch[:0]
	for _, b := range s.segs {
		scratch = append(scratch, b...)
	}
	return scratch, scratch
}

// Parts returns what to send: out, and after it the pieces in rest. Only the
// bytes of a small plan are copied into one, in scratch, which it returns for the
// next use.
func (s *Segments) Parts(scratch []byte) (out []byte, rest [][]byte, next []byte) {
	s.flush()
	size := 0
	for _, b := range s.segs {
		size += len(b)
	}
	if len(s.segs) > 1 && size > largePlan {
		return s.segs[0], s.segs[1:], scratch
	}
	out, next = s.Bytes(scratch)
	return out, nil, next
}
