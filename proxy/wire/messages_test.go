package wire_test

import (
	"slices"
	"testing"

	"github.com/fencepost/fencepost/proxy/wire"
)

// TestDecodeColumns includes what no server of Postgres sends.
func TestDecodeColumns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		body   string
		values []string
		ok     bool
	}{
		"a value":                 {"\x00\x01\x00\x00\x00\x02ab", []string{"ab"}, true},
		"two":                     {"\x00\x02\x00\x00\x00\x01a\x00\x00\x00\x01b", []string{"a", "b"}, true},
		"a value behind NULL":     {"\x00\x02\xff\xff\xff\xff\x00\x00\x00\x01b", []string{"", "b"}, true},
		"an empty value":          {"\x00\x01\x00\x00\x00\x00", []string{""}, true},
		"NULL":                    {"\x00\x01\xff\xff\xff\xff", []string{""}, true},
		"no column":               {"\x00\x00", nil, true},
		"cut off":                 {"\x00\x01\x00\x00", nil, false},
		"the second is missing":   {"\x00\x02\x00\x00\x00\x01a", nil, false},
		"empty":                   {"", nil, false},
		"longer than the body":    {"\x00\x01\x00\x00\x00\x03ab", nil, false},
		"the longest length":      {"\x00\x01\x7f\xff\xff\xffab", nil, false},
		"another negative length": {"\x00\x01\xff\xff\xff\xfeab", nil, false},
	} {
		if values, ok := wire.DecodeColumns([]byte(c.body)); !slices.Equal(values, c.values) || ok != c.ok {
			t.Errorf("%s: %q, %t; want %q, %t", name, values, ok, c.values, c.ok)
		}
	}
}

// TestFunctionResult includes what no server of Postgres sends.
func TestFunctionResult(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{"\x00\x00\x00\x02ab": "ab", "\x00\x00\x00\x00": ""} {
		if result, ok := wire.FunctionResult([]byte(body)); string(result) != want || !ok {
			t.Errorf("%q: %q, %t; want %q", body, result, ok, want)
		}
	}
	for _, body := range []string{"", "\x00\x00\x00", "\xff\xff\xff\xff", "\x00\x00\x00\x03ab", "\x00\x00\x00\x01ab", "\xff\xff\xff\xfeab"} {
		if result, ok := wire.FunctionResult([]byte(body)); ok {
			t.Errorf("%q: %q", body, result)
		}
	}
}
