package pgtls

import (
	"testing"
)

func TestWithoutBinding(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list, want string
		stripped   bool
	}{
		{"SCRAM-SHA-256-PLUS\x00SCRAM-SHA-256\x00\x00", "SCRAM-SHA-256\x00\x00", true},
		{"SCRAM-SHA-256\x00\x00", "SCRAM-SHA-256\x00\x00", false},
		{"SCRAM-SHA-256\x00OAUTHBEARER\x00SCRAM-SHA-256-PLUS\x00\x00", "SCRAM-SHA-256\x00OAUTHBEARER\x00\x00", true},
		{"SCRAM-SHA-256-PLUS\x00\x00", "\x00", true},
		{"SCRAM-SHA-256\x00SCRAM-SHA", "SCRAM-SHA-256\x00\x00", false}, // cut off
		{"\x00", "\x00", false},
		{"", "\x00", false},
	} {
		got, stripped := WithoutBinding([]byte("head"), []byte(c.list))
		if string(got) != "head"+c.want || stripped != c.stripped {
			t.Errorf("%q: %q, stripped %t", c.list, got, stripped)
		}
	}
}

func TestMissesBinding(t *testing.T) {
	t.Parallel()
	for response, want := range map[string]bool{
		"SCRAM-SHA-256\x00\x00\x00\x00\x20y,,n=,r=abc":                           true,
		"SCRAM-SHA-256\x00\x00\x00\x00\x20n,,n=,r=abc":                           false,
		"SCRAM-SHA-256-PLUS\x00\x00\x00\x00\x20p=tls-server-end-point,,n=,r=abc": false,
		"SCRAM-SHA-256\x00\x00\x00\x00\x00":                                      false,
		"SCRAM-SHA-256y":                                                         false,
		"":                                                                       false,
	} {
		if got := MissesBinding([]byte(response)); got != want {
			t.Errorf("%q: %t", response, got)
		}
	}
}
