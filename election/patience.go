package election

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// lessonLasts is how long a false alarm lengthens the timeout of its worker.
	lessonLasts = 24 * time.Hour
	// maxPatience bounds what false alarms make of a timeout: so many times what
	// the worker asked for.
	maxPatience = 16
	// maxLessons bounds what is remembered of the workers of one role.
	maxLessons = 64
)

// who names the worker that a false alarm belongs to. The candidacy would not
// do: a worker that was superseded while it computed in silence connects again,
// and that is a new candidacy. The resource would not do either: one worker with
// a short timeout would then delay the replacement of all others. So it is the
// worker's id, or, where the client names none and each connection is a worker
// of its own, the address it comes from.
type who struct {
	resourceKey
	user, worker string
	client       netip.Addr
}

func (c *Candidacy) who() who {
	w := who{resourceKey: c.r.key, user: c.user, worker: c.worker}
	if c.nameless {
		w.worker, w.client = "", c.client
	}
	return w
}

// lesson is what the false alarms of one worker have taught: it can be silent
// for longer than it was waited for.
type lesson struct {
	alarms  int
	atLeast time.Duration // the timeout from now on, unless a longer one is asked for
	until   time.Duration // when it is forgotten
}

// lessons are those of all workers, by role. They outlive candidacies and
// resources, and a role can make only its own ones be forgotten.
type lessons struct {
	mu     sync.Mutex
	byUser map[string]map[who]lesson
}

// learn notes that w came back after a silence that had been taken for its
// death after the timeout. It returns what is known of w now.
func (l *lessons) learn(w who, timeout, now time.Duration) lesson {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byUser == nil {
		l.byUser = map[string]map[who]lesson{}
	}
	known := l.byUser[w.user]
	if known == nil {
		known = map[who]lesson{}
		l.byUser[w.user] = known
	}
	next := known[w]
	if now >= next.until {
		next = lesson{}
	}
	if _, ok := known[w]; !ok && len(known) >= maxLessons {
		delete(known, soonestForgotten(known))
	}
	next.alarms++
	next.atLeast = max(next.atLeast, 2*timeout)
	next.until = now + lessonLasts
	known[w] = next
	return next
}

func soonestForgotten(known map[who]lesson) (soonest who) {
	first := true
	for w, l := range known {
		if first || l.until < known[soonest].until {
			soonest, first = w, false
		}
	}
	return soonest
}

// of returns what is known of w, the zero lesson if nothing is.
func (l *lessons) of(w who, now time.Duration) lesson {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.byUser[w.user][w]
	if ok && now >= known.until {
		delete(l.byUser[w.user], w)
		if len(l.byUser[w.user]) == 0 {
			delete(l.byUser, w.user)
		}
		return lesson{}
	}
	return known
}

// timeout is what the lesson makes of the timeout that a worker asked for: at
// most maxPatience times that, and at most most, where that is not 0.
func (l lesson) timeout(asked, most time.Duration) time.Duration {
	learned := min(l.atLeast, maxPatience*asked)
	if most > 0 {
		learned = min(learned, most)
	}
	return max(asked, learned)
}

// falseAlarmLocked notes that a worker taken for dead was not.
func (c *Candidacy) falseAlarmLocked() lesson {
	c.mu.alarm = true
	return c.r.e.lessons.learn(c.who(), c.mu.liveness.struck, c.r.e.cfg.Now())
}

// effectiveLocked is the timeout of a candidacy that asked for that one.
func (c *Candidacy) effectiveLocked(asked time.Duration) time.Duration {
	if asked == 0 {
		return 0
	}
	return c.lesson().timeout(asked, c.r.set.MaxWorkerTimeout)
}

func (c *Candidacy) lesson() lesson { return c.r.e.lessons.of(c.who(), c.r.e.cfg.Now()) }
