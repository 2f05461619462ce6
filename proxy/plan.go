package proxy

// plan is what to send on of one buffer of input: ranges of it, and bytes of
// ours between them, in order.
type plan struct {
	in       []byte
	from, to int // the range not yet in segs
	segs     [][]byte
}

// reset begins a plan for in.
func (p *plan) reset(in []byte) {
	clear(p.segs)
	p.in, p.from, p.to, p.segs = in, 0, 0, p.segs[:0]
}

// forward sends on in[from:to]. Ranges must not overlap and must ascend.
func (p *plan) forward(from, to int) {
	if from == p.to && p.from < p.to {
		p.to = to
		return
	}
	p.flush()
	p.from, p.to = from, to
}

// insert sends b, which must stay as it is until the plan was carried out.
func (p *plan) insert(b []byte) {
	if len(b) == 0 {
		return
	}
	p.flush()
	p.segs = append(p.segs, b)
}

func (p *plan) flush() {
	if p.from < p.to {
		p.segs = append(p.segs, p.in[p.from:p.to])
	}
	p.from = p.to
}

// bytes returns what to send as one slice. It copies only if there is more
// than one segment, into scratch, which it returns for the next use.
func (p *plan) bytes(scratch []byte) (out, next []byte) {
	p.flush()
	if len(p.segs) == 1 {
		return p.segs[0], scratch
	}
	scratch = scratch[:0]
	for _, s := range p.segs {
		scratch = append(scratch, s...)
	}
	return scratch, scratch
}
