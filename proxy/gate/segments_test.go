package gate

import "testing"

func TestPlanKeepsOrderAndJoinsRanges(t *testing.T) {
	t.Parallel()
	in := []byte("0123456789")
	cases := []struct {
		name string
		make func(p *Segments)
		want string
		segs int
	}{
		{"nothing", func(*Segments) {}, "", 0},
		{"all", func(p *Segments) { p.Forward(0, 10) }, "0123456789", 1},
		{"neighbours are one", func(p *Segments) { p.Forward(0, 3); p.Forward(3, 6); p.Forward(6, 10) }, "0123456789", 1},
		{"a gap is dropped", func(p *Segments) { p.Forward(0, 3); p.Forward(5, 10) }, "01256789", 2},
		{"ours between", func(p *Segments) { p.Forward(0, 3); p.Insert([]byte("ab")); p.Forward(3, 5) }, "012ab34", 3},
		{"ours first", func(p *Segments) { p.Insert([]byte("ab")); p.Forward(0, 1) }, "ab0", 2},
		{"ours last", func(p *Segments) { p.Forward(9, 10); p.Insert([]byte("ab")) }, "9ab", 2},
		{"nothing of ours splits nothing", func(p *Segments) { p.Forward(0, 3); p.Insert(nil); p.Forward(3, 5) }, "01234", 1},
		{"only ours", func(p *Segments) { p.Insert([]byte("a")); p.Insert([]byte("b")) }, "ab", 2},
	}
	var p Segments
	var scratch []byte
	for _, c := range cases {
		p.Reset(in)
		c.make(&p)
		var out []byte
		out, scratch = p.Bytes(scratch)
		if string(out) != c.want || len(p.segs) != c.segs {
			t.Errorf("%s: %q in %d pieces, want %q in %d", c.name, out, len(p.segs), c.want, c.segs)
		}
	}
}

func TestPlanOfOnePieceIsNotCopied(t *testing.T) { // not parallel: others allocate
	in := []byte("0123456789")
	var p Segments
	p.Reset(in)
	p.Forward(2, 5)
	out, _ := p.Bytes(nil)
	if &out[0] != &in[2] || len(out) != 3 {
		t.Errorf("one range came back as a copy: %q", out)
	}
	p.Reset(in)
	p.Forward(0, 1)
	p.Forward(3, 4)
	scratch := make([]byte, 0, 16)
	allocs := testing.AllocsPerRun(100, func() {
		p.Reset(in)
		p.Forward(0, 1)
		p.Forward(3, 4)
		_, scratch = p.Bytes(scratch)
	})
	if allocs != 0 {
		t.Errorf("two ranges cost %v allocations once the plan is warm, want 0", allocs)
	}
}
