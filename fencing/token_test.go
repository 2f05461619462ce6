package fencing

import (
	"math"
	"strings"
	"testing"
)

func TestLowerTokens(t *testing.T) {
	t.Parallel()
	rec := Record{Epoch: 7, Worker: "b", Source: SourceToken, Generation: 2, Index: 43}
	for incarnation, says := range map[string]string{
		TokenIncarnation(2, 43):            "",
		TokenIncarnation(2, 44):            "",
		TokenIncarnation(3, 1):             "",
		TokenIncarnation(2, 42):            `its token 42 is lower than the recorded token 43`,
		TokenIncarnation(1, math.MaxInt64): "is of generation 1, and the recorded award 43 is of generation 2",
		"KQ7ZJYQY":                         "", // of a lease
		"token:x":                          "",
	} {
		r := LowerToken("r", "w", incarnation, rec)
		switch {
		case (r != nil) != (says != ""):
			t.Errorf("%s: %v, want %q", incarnation, r, says)
		case r != nil && (r.SQLState != StateSuperseded || !strings.Contains(r.Message, says) || !strings.Contains(r.Hint, "fencepost generation bump --tokens")):
			t.Errorf("%s: %v %s, want %q", incarnation, r, r.Hint, says)
		}
	}
}
