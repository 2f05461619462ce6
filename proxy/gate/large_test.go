package gate

import (
	"bytes"
	"testing"
)

// TestLargePlanIsNotCopied, whatever is in front of the client's message.
func TestLargePlanIsNotCopied(t *testing.T) {
	t.Parallel()
	for size, copied := range map[int]bool{100: true, largePlan: true, largePlan + 1: false, 10 << 20: false} {
		in, front := bytes.Repeat([]byte("x"), size-3), []byte("abc")
		var p Segments
		p.Reset(in)
		p.Insert(front)
		p.Forward(0, len(in))
		out, rest, scratch := p.Parts(nil)
		whole := bytes.Join(append([][]byte{out}, rest...), nil)
		if !bytes.Equal(whole, append(front, in...)) {
			t.Errorf("%d bytes: something else is sent", size)
		}
		if (cap(scratch) > 0) != copied || !copied && &rest[0][0] != &in[0] {
			t.Errorf("%d bytes: copied is %v, want %v", size, cap(scratch) > 0, copied)
		}
	}
}
