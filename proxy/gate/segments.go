package gate

// Segments is what to send on of one buffer of input: ranges of it, and other
// bytes between them, in order.
type Segments struct {
	in       []byte
	from, to int // the range not yet in segs
	segs     [][]byte
}

// Reset begins anew for in.
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
