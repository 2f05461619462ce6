package kv

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
)

const (
	// followFor is how long a watch continues before everything is read again: a watch that began
	// before the service was restored may show nothing, and fail with nothing.
	followFor = 5 * time.Second
	// answerTimeout is when a service that has not answered counts as unreachable.
	answerTimeout = 2 * time.Second
	minPause      = 100 * time.Millisecond
	maxPause      = 2 * time.Second
)

// observation is what the watch last saw of all keys under the prefix.
type observation struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each change
	marker  string        // "" before the first snapshot
	err     error
	leases  map[string]sight
}

// sight is the observation of an entry, and the entry.
type sight struct {
	entry       Entry
	observation elector.Observation // without the instance id
}

// poll returns the observation of a key, and a channel that is closed when it may have changed.
// The observation is Unseen before the first snapshot. The error says why nothing can be
// observed at the moment.
func (o *observation) poll(key string) (elector.Observation, <-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || o.marker == "" {
		return elector.Observation{}, o.changed, o.err
	}
	seen, ok := o.leases[key]
	if !ok {
		seen.observation = observe(Entry{})
	}
	seen.observation.InstanceID = o.marker
	return seen.observation, o.changed, nil
}

// failure returns why nothing can be observed at the moment.
func (o *observation) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// store takes a snapshot. Only the records that have changed are decoded.
func (o *observation) store(s Snapshot) {
	leases := make(map[string]sight, len(s.Entries))
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, e := range s.Entries {
		known, ok := o.leases[key]
		if !ok || known.entry.Version != e.Version || known.entry.Life != e.Life || !bytes.Equal(known.entry.Record, e.Record) {
			known = sight{e, observe(e)}
		}
		leases[key] = known
	}
	o.leases, o.marker, o.err = leases, s.Marker, nil
	o.announce()
}

// fail records why nothing can be observed.
func (o *observation) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	o.announce()
}

// announce wakes those who wait. o.mu is held.
func (o *observation) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// watch keeps the observation up to date until Close. One watch serves all databases and
// resources of this proxy.
func (c *Client) watch() {
	pause := minPause
	for c.ctx.Err() == nil {
		err := c.watchOnce()
		if c.ctx.Err() != nil {
			return
		}
		if err == nil {
			pause = minPause
			c.failing.Passed()
			continue
		}
		c.seen.fail(err)
		c.failing.Failed(zap.Error(err))
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, maxPause)
	}
}

// watchOnce stores what the watch shows for a while. It makes the marker if there is none.
func (c *Client) watchOnce() error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	over := time.AfterFunc(answerTimeout, cancel)
	defer over.Stop()
	shown, unmarked := false, false
	err := c.store.Watch(ctx, func(s Snapshot) {
		if !shown {
			over.Reset(followFor)
		}
		if shown, unmarked = true, !isMarker(s.Marker); unmarked {
			cancel()
			return
		}
		c.seen.store(s)
	})
	switch {
	case ctx.Err() == nil && err != nil:
		return err
	case !shown:
		return fmt.Errorf("%s does not answer: %w", c.cfg.Service, context.DeadlineExceeded)
	case unmarked:
		return c.mark()
	}
	return nil
}

// mark makes the marker, and makes sure that it can be read.
func (c *Client) mark() error {
	ctx, cancel := context.WithTimeout(c.ctx, answerTimeout)
	defer cancel()
	if err := c.store.Mark(ctx, newMarker(), false); err != nil {
		return err
	}
	entry, err := c.store.Read(ctx, ".") // no lease has this key
	if err == nil && !isMarker(entry.Marker) {
		err = c.overwritten(entry.Marker)
	}
	return err
}

// overwritten says that something else has replaced the marker.
func (c *Client) overwritten(marker string) error {
	what := "empty"
	if marker != "" {
		what = fmt.Sprintf("not one of Fencepost's (%.20q, %d bytes)", marker, len(marker))
	}
	return fmt.Errorf("the generation marker in %s is %s: somebody has overwritten it (fencepost generation bump writes a new one)", c.cfg.Service, what)
}
