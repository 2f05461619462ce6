package fencing_test

import (
	"strings"
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

func TestCheckTextsAreOneStatementOfASCII(t *testing.T) {
	t.Parallel()
	const worker = "ü'; DROP TABLE x; --"
	for name, sql := range map[string]string{
		"prepared":       fencing.CheckSQL(7, worker, "i", false),
		"front":          fencing.FrontCheckSQL(7, worker, "i", false, 3),
		"inline":         fencing.InlineCheckSQL(7, worker, "i", false, 3, 4),
		"refusal":        fencing.RefuseSQL(7, worker, "i", 3, 4, true),
		"verdict":        fencing.VerdictSQL(7, worker, "i", false),
		"inline verdict": fencing.InlineVerdictSQL(7, worker, "i", false, 3, 4),
		"chosen":         fencing.ChosenCheckSQL(worker, "b", []fencing.Subject{{Fence: 7, Incarnation: "i", Told: 3, Held: 4}}),
		"lapsed verdict": fencing.LapsedVerdictSQL(7, worker, "i", 3, 4),
	} {
		if strings.ContainsAny(sql, "ü\n\x00%") || !strings.Contains(sql, `E'"\\u00fc''; DROP TABLE x; --"'`) {
			t.Errorf("%s: %s", name, sql)
		}
		if strings.Contains(sql, "$1") != (name == "prepared" || name == "verdict") {
			t.Errorf("%s has the wrong parameters: %s", name, sql)
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
