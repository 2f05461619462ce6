package wire_test

import (
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"
)

// TestDecodeFirstColumn includes what no server of Postgres sends.
func TestDecodeFirstColumn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body, value string
		ok          bool
	}{
		"a value":                 {"\x00\x01\x00\x00\x00\x02ab", "ab", true},
		"the first of two":        {"\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x01b", "a", true},
		"an empty value":          {"\x00\x01\x00\x00\x00\x00", "", true},
		"NULL":                    {"\x00\x01\xff\xff\xff\xff", "", true},
		"no column":               {"\x00\x00\x00\x00\x00\x00", "", false},
		"cut off":                 {"\x00\x01\x00\x00", "", false},
		"empty":                   {"", "", false},
		"longer than the body":    {"\x00\x01\x00\x00\x00\x03ab", "", false},
		"the longest length":      {"\x00\x01\x7f\xff\xff\xffab", "", false},
		"another negative length": {"\x00\x01\xff\xff\xff\xfeab", "", false},
	} {
		if value, ok := wire.DecodeFirstColumn([]byte(c.body)); value != c.value || ok != c.ok {
			t.Errorf("%s: %q, %t; want %q, %t", name, value, ok, c.value, c.ok)
		}
	}
}
