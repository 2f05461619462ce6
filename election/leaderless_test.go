package election

import (
	"testing"
	"time"
)

func TestLeaderlessCountsUntilSomebodyLeads(t *testing.T) {
	t.Parallel()
	var l leaderless
	for _, c := range []struct {
		led       bool
		at, since time.Duration
	}{
		{true, 1, 0}, {false, 2, 2}, {false, 3, 2}, {true, 4, 0}, {false, 5, 5},
	} {
		if l.follow(c.led, c.at); l.leaderlessSince != c.since {
			t.Errorf("led %t at %d: leaderless since %d, want %d", c.led, c.at, l.leaderlessSince, c.since)
		}
	}
}
