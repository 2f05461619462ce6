package admin

import (
	"context"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"sync"
	"time"
)

const (
	// lookEvery is how often the state is looked at while a browser follows it.
	lookEvery = time.Second
	// ranOff is by how many seconds a running time may differ from what a browser makes of the one that it was sent. A
	// lease is renewed, and a worker sends something, much more often than anyone needs to see.
	ranOff = 1.5
	// active is for how many seconds a worker may be silent and still count as one that sends.
	active = 2
)

// Live is one event of /v1/events. Its JSON is a contract.
type Live struct {
	Proxy string    `json:"proxy"`
	At    time.Time `json:"at"`
	// Whole means that Resources are all resources. Otherwise they are those that have changed since the last event
	// by more than what the passing of time changes.
	Whole     bool              `json:"whole"`
	Resources []json.RawMessage `json:"resources"` // as in /v1/resources
	Readiness *Readiness        `json:"readiness"` // nil while it is not known
	// ReadinessAge is how many seconds ago Readiness was known.
	ReadinessAge float64 `json:"readiness_age_seconds"`
}

// live is what the browsers that follow this proxy are sent. They share one look at the state.
type live struct {
	server *Server
	done   chan struct{} // closed by close
	end    func()
	asks   sync.WaitGroup // ends when no one asks whether the proxy is ready

	mu      sync.Mutex
	looked  time.Time
	version uint64 // grows with each look that has found a change
	removed uint64 // the version of the last look that has found a resource gone
	rows    map[[2]string]*liveRow
	ready   *Readiness
	readyAt time.Time
	asking  bool // someone asks whether the proxy is ready
	closed  bool
}

// liveRow is a resource as the browsers know it.
type liveRow struct {
	version uint64 // of the look in which it has changed
	at      time.Time
	view    ResourceView    // at that time
	now     ResourceView    // in the newest look
	text    json.RawMessage // now as JSON, nil until someone needs it
}

// json returns the resource as the newest look has found it.
func (r *liveRow) json() json.RawMessage {
	if r.text == nil {
		text, err := json.Marshal(r.now)
		if err != nil {
			panic(err) // it consists of texts and numbers
		}
		r.text = text
	}
	return r.text
}

func (l *live) init(a *Server) {
	l.server, l.done, l.rows = a, make(chan struct{}), map[[2]string]*liveRow{}
	l.end = sync.OnceFunc(func() { close(l.done) })
}

// close ends the streams. No one asks whether the proxy is ready from then on.
func (l *live) close() {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// follow returns the function that returns what one browser is sent next: at once what is known, and then every second
// what is new. It returns nil when ctx or the server ends.
func (l *live) follow(ctx context.Context) (next func() []byte) {
	sent, first := uint64(0), true
	return func() []byte {
		if !first {
			pause := time.NewTimer(lookEvery)
			defer pause.Stop()
			select {
			case <-pause.C:
			case <-l.done:
				return nil
			case <-ctx.Done():
				return nil
			}
		}
		text, version := l.since(ctx, sent, first)
		sent, first = version, false
		return text
	}
}

// since returns the event for a browser that knows what there was at a version, and the version that it knows then.
func (l *live) since(ctx context.Context, version uint64, whole bool) ([]byte, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.lookLocked(now)
	l.askLocked(ctx)
	e := Live{Proxy: l.server.Proxy, At: now.UTC(), Whole: whole || l.removed > version, Resources: []json.RawMessage{}, Readiness: l.ready}
	if l.ready != nil {
		e.ReadinessAge = now.Sub(l.readyAt).Seconds()
	}
	for _, row := range l.rows {
		if e.Whole || row.version > version {
			e.Resources = append(e.Resources, row.json())
		}
	}
	text, err := json.Marshal(e)
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	return text, l.version
}

// lookLocked looks at the state, unless someone has just done so. l.mu is held.
func (l *live) lookLocked(now time.Time) {
	if now.Sub(l.looked) < lookEvery/2 {
		return
	}
	l.looked = now
	next, here := l.version+1, map[[2]string]bool{}
	for _, v := range l.server.Views() {
		key := [2]string{v.Database, v.Resource}
		here[key] = true
		row := l.rows[key]
		if row == nil || moved(row.view, v, now.Sub(row.at)) {
			row = &liveRow{version: next, at: now, view: v}
			l.rows[key], l.version = row, next
		}
		row.now, row.text = v, nil
	}
	for key := range l.rows {
		if !here[key] {
			delete(l.rows, key)
			l.version, l.removed = next, next
		}
	}
}

// askLocked asks whether the proxy is ready, which may take long, and so no one waits for it. l.mu is held.
func (l *live) askLocked(ctx context.Context) {
	if l.asking || l.closed {
		return
	}
	l.asking = true
	l.asks.Go(func() {
		ready := l.server.Ready(context.WithoutCancel(ctx))
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ready, l.readyAt, l.asking = &ready, time.Now(), false
	})
}

// moved reports whether a resource has changed by more than the time that has passed since was makes of it.
func moved(was, is ResourceView, passed time.Duration) bool {
	dt := passed.Seconds()
	settle(&is.Leaderless, was.Leaderless, dt)
	if was.LeaseLeft != nil && is.LeaseLeft != nil {
		left := *is.LeaseLeft
		settle(&left, *was.LeaseLeft, -dt)
		is.LeaseLeft = &left
	}
	is.ConfirmedUntil, is.StateSince = same(is.ConfirmedUntil, was.ConfirmedUntil), same(is.StateSince, was.StateSince)
	is.AsOf = same(is.AsOf, was.AsOf)
	if len(is.Workers) == len(was.Workers) {
		is.Workers = slices.Clone(is.Workers)
		for i := range is.Workers {
			w, before := &is.Workers[i], was.Workers[i]
			if w.Silence < active && before.Silence < active {
				w.Silence = before.Silence
			}
			settle(&w.Silence, before.Silence, dt)
			settle(&w.LongestSilence, before.LongestSilence, 0)
			settle(&w.LongestSilence, before.LongestSilence, dt) // it is the present one
		}
	}
	return !reflect.DeepEqual(was, is)
}

// settle sets a number to what it was if it is about what dt seconds make of that. 0 does not grow.
func settle(is *float64, was, dt float64) {
	if was != 0 && *is != 0 && math.Abs(*is-was-dt) < ranOff {
		*is = was
	}
}

// same returns the time that was, if the other one is about the same.
func same(is, was *time.Time) *time.Time {
	if is != nil && was != nil && math.Abs(is.Sub(*was).Seconds()) < ranOff {
		return was
	}
	return is
}
