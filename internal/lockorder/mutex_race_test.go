//go:build race

package lockorder

import (
	"strings"
	"testing"
)

// locks are one of each of some kinds, and a second one of the last.
type locks struct {
	sending     Mutex[Sending]
	session     Mutex[Session]
	resource, r Mutex[Resource]
}

func TestALockOutOfOrderPanics(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		take func(l *locks)
		want string
	}{
		"in order":                      {take: func(l *locks) { l.sending.Lock(); l.session.Lock(); l.resource.Lock() }},
		"again, after it was unlocked":  {take: func(l *locks) { l.session.Lock(); l.session.Unlock(); l.sending.Lock(); l.session.Lock() }},
		"by another goroutine":          {take: func(l *locks) { l.session.Lock(); elsewhere(l.sending.Lock) }},
		"unlocked by another goroutine": {take: func(l *locks) { l.session.Lock(); elsewhere(l.session.Unlock); l.sending.Lock() }},
		"tried out of order":            {take: func(l *locks) { l.session.Lock(); l.sending.TryLock() }},
		"out of order":                  {take: func(l *locks) { l.resource.Lock(); l.session.Lock() }, want: "Session is taken by a goroutine that holds lockorder.Resource"},
		"twice":                         {take: func(l *locks) { l.session.Lock(); l.session.Lock() }, want: "holds lockorder.Session"},
		"two of a kind":                 {take: func(l *locks) { l.resource.Lock(); l.r.Lock() }, want: "holds lockorder.Resource"},
		"after one that was tried":      {take: func(l *locks) { l.session.TryLock(); l.sending.Lock() }, want: "holds lockorder.Session"},
	} {
		elsewhere(func() { // a goroutine of its own ends without the locks that it has taken
			defer func() {
				text, _ := recover().(string)
				if (text != "") != (c.want != "") || !strings.Contains(text, c.want) {
					t.Errorf("%s: %q, want %q", name, text, c.want)
				}
			}()
			c.take(&locks{})
		})
	}
}

// elsewhere runs f in another goroutine.
func elsewhere(f func()) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	<-done
}
