package oracle

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
)

// TestChecksAreRecognized: the texts that the proxy sends are those that the
// oracle takes for checks, and nothing that differs from them is.
func TestChecksAreRecognized(t *testing.T) {
	t.Parallel()
	full, front := fencing.CheckSQL(7, "it's \\ w", "i'n#1"), fencing.FrontCheckSQL(7, "w", "in")
	for _, c := range []struct {
		sql  string
		want kind
	}{
		{full, check}, {front, check}, {fencing.InlineCheckSQL(7, "w", "in", 3, 3), check}, {fencing.ReadOnlySQL, readOnly},
		{fencing.RefuseSQL(7, "w", "in", 3, 0, true), fails},
		{full + " OR true", query},
		{"SELECT fencepost.refuse(7, 3, 'w', 'in', 3, false) WHERE false", query},
	} {
		got := read([]byte(c.sql), standard, true)
		if len(got) != 1 || got[0].kind != c.want {
			t.Errorf("%s: read as %+v, want %s", c.sql, got, kindNames[c.want])
		}
	}
}
