// Package patience remembers the false alarms of workers: how much longer than it asked for a worker may be inactive.
package patience

import (
	"net/netip"
	"time"

	"github.com/fencepost/fencepost/internal/lockorder"
)

const (
	// extensionLasts is how long the extension of a worker's timeout lasts after its last
	// false alarm.
	extensionLasts = time.Hour
	// maxRemembered limits how many workers of one role are remembered.
	maxRemembered = 64
)

// Worker identifies the worker that a false alarm belongs to. The candidacy is
// unsuitable, because a worker that connects again begins a new one. The resource is unsuitable too, because one worker
// with a short timeout would then delay the replacement of all others. So it is the
// worker's id, or the client's address if the client names no worker and each
// connection counts as one.
type Worker struct {
	Database, Resource string
	User, Worker       string
	Client             netip.Addr
}

// Extension is the extension of one worker's timeout by its false alarms.
type Extension struct {
	Alarms  int
	atLeast time.Duration // the timeout from now on, unless a longer one is requested
	until   time.Duration // when it expires
}

// Extensions are the extensions of all workers, by role. They outlive candidacies and
// resources. A role can displace only its own entries.
type Extensions struct {
	mu     lockorder.Mutex[lockorder.Patience]
	byUser map[string]map[Worker]Extension
}

// Record notes that w became active again, before anyone else was granted an epoch,
// after it had been treated as dead for being inactive for timeout. It returns the
// worker's new extension.
func (l *Extensions) Record(w Worker, timeout, now time.Duration) Extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser == nil {
		l.byUser = map[string]map[Worker]Extension{}
	}
	known := l.byUser[w.User]
	if known == nil {
		known = map[Worker]Extension{}
		l.byUser[w.User] = known
	}
	next := known[w]
	if now >= next.until {
		next = Extension{}
	}
	if _, ok := known[w]; !ok && len(known) >= maxRemembered {
		delete(known, firstToExpire(known))
	}
	next.Alarms++
	next.atLeast = max(next.atLeast, 2*timeout)
	next.until = now + extensionLasts
	known[w] = next
	return next
}

func firstToExpire(known map[Worker]Extension) (soonest Worker) {
	first := true
	for w, l := range known {
		if first || l.until < known[soonest].until {
			soonest, first = w, false
		}
	}
	return soonest
}

// Of returns the extension of w, or the zero value if there is none.
func (l *Extensions) Of(w Worker, now time.Duration) Extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.byUser[w.User][w]
	if ok && now >= known.until {
		delete(l.byUser[w.User], w)
		if len(l.byUser[w.User]) == 0 {
			delete(l.byUser, w.User)
		}
		return Extension{}
	}
	return known
}

// Timeout returns the extended timeout for a requested one: at most factor times asked,
// and at most most unless that is 0.
func (l Extension) Timeout(asked time.Duration, factor int, most time.Duration) time.Duration {
	extended := min(l.atLeast, time.Duration(factor)*asked)
	if most > 0 {
		extended = min(extended, most)
	}
	return max(asked, extended)
}
