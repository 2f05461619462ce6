package evidence

import (
	"fmt"
	"testing"
)

func TestSnapshots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		sees map[Xid]Sight
	}{
		{"10:10:", map[Xid]Sight{9: Ended, 10: Open, 11: Open}},
		{"8:10:", map[Xid]Sight{7: Ended, 8: Ended, 9: Ended, 10: Open}}, // 8 is the own transaction
		{"10:20:10,14", map[Xid]Sight{9: Ended, 10: Open, 11: Unclear, 14: Open, 15: Unclear, 19: Unclear, 20: Open}},
		{"8589934592:8589934600:8589934599", map[Xid]Sight{8589934598: Ended, 8589934599: Open, 8589934600: Open}},
	} {
		s, err := ParseSnapshot(c.text)
		if err != nil {
			t.Fatal(err)
		}
		for x, want := range c.sees {
			if got := s.Sees(x); got != want {
				t.Errorf("%s sees %d: %v, want %v", c.text, x, got, want)
			}
			if x < s.EndedBelow() && s.Sees(x) != Ended {
				t.Errorf("%s: %d is below %d, and has not ended", c.text, x, s.EndedBelow())
			}
		}
	}
	for _, text := range []string{"", "1:2", "1:x:", "1:2:3,", "1:2:3:4"} {
		if s, err := ParseSnapshot(text); err == nil {
			t.Error(fmt.Sprintf("%q is read as %+v", text, s))
		}
	}
}
