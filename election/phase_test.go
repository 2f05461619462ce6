package election

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
)

func TestHoldingOfAnAwardIsTrustedFromBeforeTheRequest(t *testing.T) {
	t.Parallel()
	set := Settings{TTL: 9 * time.Second}
	lease := &elector.Lease{Index: 7}
	for name, c := range map[string]struct {
		freeSince time.Duration
		want      time.Duration // freeSince of the holding
	}{
		"not known to be free":         {0, 100 * time.Second},
		"free for a while":             {90 * time.Second, 90 * time.Second},
		"freed after it was asked for": {101 * time.Second, 100 * time.Second},
	} {
		got := newHolding(lease, set, 100*time.Second, c.freeSince, time.Millisecond)
		want := holding{
			lease: lease, trusted: 108100 * time.Millisecond, renewAt: 102*time.Second + time.Millisecond,
			requested: 100 * time.Second, confirmedAt: 100 * time.Second, freeSince: c.want,
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func TestLateResponseDoesNotShortenTrust(t *testing.T) {
	t.Parallel()
	set := Settings{TTL: 9 * time.Second}
	h := newHolding(&elector.Lease{}, set, 100*time.Second, 0, 0)
	for _, c := range []struct{ sent, trusted, renewAt time.Duration }{
		{104 * time.Second, 112100 * time.Millisecond, 105 * time.Second},
		{101 * time.Second, 112100 * time.Millisecond, 102 * time.Second},
		{105 * time.Second, 113100 * time.Millisecond, 108 * time.Second},
	} {
		h = h.confirmed(set, c.sent, 0)
		if h.trusted != c.trusted || h.renewAt != c.renewAt {
			t.Errorf("confirmed by a request sent at %v: trusted until %v, renewed at %v, want %v and %v",
				c.sent, h.trusted, h.renewAt, c.trusted, c.renewAt)
		}
	}
}

func TestTrustEndsWithWhatTheServiceGranted(t *testing.T) {
	t.Parallel()
	const sent = 100 * time.Second
	for name, c := range map[string]struct {
		set              Settings
		granted          time.Duration
		trusted, renewAt time.Duration
	}{
		"what was asked for":      {Settings{TTL: 9 * time.Second}, 0, 108100 * time.Millisecond, 102 * time.Second},
		"more than was asked for": {Settings{TTL: 9 * time.Second}, 20 * time.Second, 108100 * time.Millisecond, 102 * time.Second},
		"less than was asked for": {Settings{TTL: 60 * time.Second}, 6 * time.Second, 105400 * time.Millisecond, 102 * time.Second},
	} {
		h := newHolding(&elector.Lease{Granted: c.granted}, c.set, sent, 0, 0)
		if h.trusted != c.trusted || h.renewAt != c.renewAt {
			t.Errorf("%s: trusted until %v, renewed at %v, want %v and %v", name, h.trusted, h.renewAt, c.trusted, c.renewAt)
		}
		if again := h.confirmed(c.set, sent+3*time.Second, 0); again.trusted != c.trusted+3*time.Second {
			t.Errorf("%s: after a renewal trusted until %v, want %v", name, again.trusted, c.trusted+3*time.Second)
		}
	}
}
