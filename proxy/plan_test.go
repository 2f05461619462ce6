package proxy

import "testing"

func TestPlanKeepsOrderAndJoinsRanges(t *testing.T) {
	t.Parallel()
	in := []byte("0123456789")
	cases := []struct {
		name string
		make func(p *plan)
		want string
		segs int
	}{
		{"nothing", func(*plan) {}, "", 0},
		{"all", func(p *plan) { p.forward(0, 10) }, "0123456789", 1},
		{"neighbours are one", func(p *plan) { p.forward(0, 3); p.forward(3, 6); p.forward(6, 10) }, "0123456789", 1},
		{"a gap is dropped", func(p *plan) { p.forward(0, 3); p.forward(5, 10) }, "01256789", 2},
		{"ours between", func(p *plan) { p.forward(0, 3); p.insert([]byte("ab")); p.forward(3, 5) }, "012ab34", 3},
		{"ours first", func(p *plan) { p.insert([]byte("ab")); p.forward(0, 1) }, "ab0", 2},
		{"ours last", func(p *plan) { p.forward(9, 10); p.insert([]byte("ab")) }, "9ab", 2},
		{"nothing of ours splits nothing", func(p *plan) { p.forward(0, 3); p.insert(nil); p.forward(3, 5) }, "01234", 1},
		{"only ours", func(p *plan) { p.insert([]byte("a")); p.insert([]byte("b")) }, "ab", 2},
	}
	var p plan
	var scratch []byte
	for _, c := range cases {
		p.reset(in)
		c.make(&p)
		var out []byte
		out, scratch = p.bytes(scratch)
		if string(out) != c.want || len(p.segs) != c.segs {
			t.Errorf("%s: %q in %d pieces, want %q in %d", c.name, out, len(p.segs), c.want, c.segs)
		}
	}
}

func TestPlanOfOnePieceIsNotCopied(t *testing.T) { // not parallel: others allocate
	in := []byte("0123456789")
	var p plan
	p.reset(in)
	p.forward(2, 5)
	out, _ := p.bytes(nil)
	if &out[0] != &in[2] || len(out) != 3 {
		t.Errorf("one range came back as a copy: %q", out)
	}
	p.reset(in)
	p.forward(0, 1)
	p.forward(3, 4)
	scratch := make([]byte, 0, 16)
	allocs := testing.AllocsPerRun(100, func() {
		p.reset(in)
		p.forward(0, 1)
		p.forward(3, 4)
		_, scratch = p.bytes(scratch)
	})
	if allocs != 0 {
		t.Errorf("two ranges cost %v allocations once the plan is warm, want 0", allocs)
	}
}
