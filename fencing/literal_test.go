package fencing_test

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

func TestLiteralIsASCIIAndEscaped(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain":     "'plain'",
		"it's":      "'it''s'",
		`a\'b`:      `E'a\\''b'`,
		"ü😀":        `E'\U000000FC\U0001F600'`,
		"a\x00b":    "'ab'",
		"bad\xffby": `E'bad\U0000FFFDby'`,
		"":          "''",
	} {
		if got := fencing.Literal(in); got != want {
			t.Errorf("Literal(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestNameIsASCIIAndJSONWhereItIsNotPlain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"host-7:4242":  "host-7:4242",
		`a "b" <c> \d`: `a "b" <c> \d`,
		`"x"`:          `"\"x\""`,
		"wörker漢😀":     `"w\u00f6rker\u6f22\ud83d\ude00"`,
		"ü\n<'":        `"\u00fc\n<'"`,
		"":             "",
	} {
		if got := fencing.Name(in); got != want {
			t.Errorf("Name(%q) = %s, want %s", in, got, want)
		}
	}
}
