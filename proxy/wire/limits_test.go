package wire_test

import (
	"encoding/binary"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"
)

func TestFrameLimits(t *testing.T) {
	t.Parallel()
	header := func(typ byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{typ}, n) }
	for _, c := range []struct {
		typ  byte
		n    uint32
		fits bool
	}{
		{'Q', 3, false}, {'Q', 0, false}, {'Q', 1 << 31, false}, {'Q', 0xffffffff, false}, {'Q', 1 << 30, false},
		{'Q', 1<<30 - 1, true}, {'Q', 4, true}, {'d', 1<<30 - 1, true}, {'B', 1 << 20, true}, {'F', 1 << 20, true}, {'P', 1 << 20, true},
		{'E', 10000, true}, {'E', 10001, false}, {'S', 10001, false}, {'D', 1 << 20, false}, {'p', 1 << 20, false}, {'y', 10001, false},
	} {
		f, ok, err := wire.PeekClientFrame(header(c.typ, c.n))
		if (err == nil) != c.fits || c.fits && (!ok || f.Type != c.typ || f.Size != int(c.n)+1) {
			t.Errorf("%q with length %d: %+v, %t, %v; fits: want %t", c.typ, c.n, f, ok, err, c.fits)
		}
	}
	for n := range wire.HeaderLen {
		if _, ok, err := wire.PeekClientFrame(header('Q', 0)[:n]); ok || err != nil {
			t.Errorf("%d bytes of a header: %t, %v", n, ok, err)
		}
	}
}
