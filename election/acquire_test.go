package election

import (
	"testing"
	"time"
)

func TestUnsuccessfulAttemptsSlowDown(t *testing.T) {
	t.Parallel()
	const now = time.Hour
	var p pace
	for _, backoff := range []time.Duration{minBackoff, 2 * minBackoff, 4 * minBackoff, 8 * minBackoff, 16 * minBackoff, maxBackoff, maxBackoff} {
		p.slowDown(now)
		if wait := p.tryAt - now; p.backoff != backoff || wait < backoff/2 || wait >= backoff {
			t.Errorf("backoff %v, next attempt after %v, want about %v", p.backoff, wait, backoff)
		}
	}
}
