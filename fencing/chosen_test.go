package fencing_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

func TestParseResources(t *testing.T) {
	t.Parallel()
	for value, want := range map[string][]string{
		"": {}, "b": {"b"}, " b , a": {"b", "a"}, "b,a,b": {"b", "a"}, "shard 7": {"shard 7"}, "\u00e9": {"\u00e9"},
		"b,": nil, ",": nil, " ": nil, "b\n": {"b"}, "b\x01": nil, "\xff": nil, strings.Repeat("x", fencing.MaxName+1): nil,
	} {
		names, ok := fencing.ParseResources(value)
		if ok != (want != nil) || ok && !slices.Equal(names, want) {
			t.Errorf("%q: %q, %v; want %q", value, names, ok, want)
		}
	}
}
