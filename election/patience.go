package election

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/fencepost/fencepost/internal/lockorder"
	"go.uber.org/zap"
)

const (
	// extensionLasts is how long the extension of a worker's timeout lasts after its last
	// false alarm.
	extensionLasts = time.Hour
	// maxRemembered limits how many workers of one role are remembered.
	maxRemembered = 64
)

// workerKey identifies the worker that a false alarm belongs to. The candidacy is
// unsuitable, because a worker that connects again begins a new one. The resource is unsuitable too, because one worker
// with a short timeout would then delay the replacement of all others. So it is the
// worker's id, or the client's address if the client names no worker and each
// connection counts as one.
type workerKey struct {
	resourceKey
	user, worker string
	client       netip.Addr
}

func (c *Candidacy) workerKey() workerKey {
	w := workerKey{resourceKey: c.r.key, user: c.user, worker: c.worker}
	if c.nameless {
		w.worker, w.client = "", c.client
	}
	return w
}

// extension is the extension of one worker's timeout by its false alarms.
type extension struct {
	alarms  int
	atLeast time.Duration // the timeout from now on, unless a longer one is requested
	until   time.Duration // when it expires
}

// extensions are the extensions of all workers, by role. They outlive candidacies and
// resources. A role can displace only its own entries.
type extensions struct {
	mu     lockorder.Mutex[lockorder.Patience]
	byUser map[string]map[workerKey]extension
}

// record notes that w became active again, before anyone else was granted an epoch,
// after it had been treated as dead for being inactive for timeout. It returns the
// worker's new extension.
func (l *extensions) record(w workerKey, timeout, now time.Duration) extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser == nil {
		l.byUser = map[string]map[workerKey]extension{}
	}
	known := l.byUser[w.user]
	if known == nil {
		known = map[workerKey]extension{}
		l.byUser[w.user] = known
	}
	next := known[w]
	if now >= next.until {
		next = extension{}
	}
	if _, ok := known[w]; !ok && len(known) >= maxRemembered {
		delete(known, firstToExpire(known))
	}
	next.alarms++
	next.atLeast = max(next.atLeast, 2*timeout)
	next.until = now + extensionLasts
	known[w] = next
	return next
}

func firstToExpire(known map[workerKey]extension) (soonest workerKey) {
	first := true
	for w, l := range known {
		if first || l.until < known[soonest].until {
			soonest, first = w, false
		}
	}
	return soonest
}

// of returns the extension of w, or the zero value if there is none.
func (l *extensions) of(w workerKey, now time.Duration) extension {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.byUser[w.user][w]
	if ok && now >= known.until {
		delete(l.byUser[w.user], w)
		if len(l.byUser[w.user]) == 0 {
			delete(l.byUser, w.user)
		}
		return extension{}
	}
	return known
}

// timeout returns the extended timeout for a requested one: at most factor times asked,
// and at most most unless that is 0.
func (l extension) timeout(asked time.Duration, factor int, most time.Duration) time.Duration {
	extended := min(l.atLeast, time.Duration(factor)*asked)
	if most > 0 {
		extended = min(extended, most)
	}
	return max(asked, extended)
}

// falseAlarmLocked is called when the fence has confirmed the candidacy's epoch under a
// lease. If the lease had been released because the worker was unresponsive, that was a
// false alarm: the worker is active again, and no one else was granted an epoch. A
// worker that was superseded meanwhile was rightly replaced, and its timeout remains.
func (c *Candidacy) falseAlarmLocked() {
	if !c.liveness.released {
		return
	}
	c.liveness.released = false
	c.r.mu.falseAlarms++
	now := c.r.e.cfg.Now()
	l := c.r.e.extensions.record(c.workerKey(), c.liveness.expired, now)
	c.log.Warn("false alarm: a worker whose lease was released for silence is active again; its timeout is extended",
		zap.Int64("epoch", int64(c.epoch)), zap.Int("false_alarms", l.alarms), zap.Duration("waited", c.liveness.expired),
		zap.Duration("timeout", c.allowedSilence(now)))
	c.event(Event{Kind: EventFalseAlarm})
}

// extendedTimeout returns the timeout in effect for a requested one.
func (c *Candidacy) extendedTimeout(asked, now time.Duration) time.Duration {
	if asked == 0 {
		return 0
	}
	return c.extension(now).timeout(asked, cmp.Or(c.set.MaxTimeoutFactor, DefaultMaxTimeoutFactor), c.set.MaxWorkerTimeout)
}

func (c *Candidacy) extension(now time.Duration) extension {
	return c.r.e.extensions.of(c.workerKey(), now)
}
