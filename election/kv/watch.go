package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/own"
)

const (
	// followFor is how long a watch goes on before everything is read anew: a watch that began
	// before the service was restored may show nothing, and fail with nothing.
	followFor = 5 * time.Second
	// answerTimeout is when a service that has not answered counts as unreachable.
	answerTimeout = 2 * time.Second
	// endsAtOnce is how many leases of an earlier run are ended at the same time.
	endsAtOnce = 16
	// endWait is how long a run of this proxy may seem to go on that is over.
	endWait  = 3 * time.Second
	minPause = 100 * time.Millisecond
	maxPause = 2 * time.Second
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
	observation election.LeaseObservation // without the instance id
}

// poll returns the observation of a key, and a channel that is closed when it may have changed.
// The observation is Unseen before the first snapshot. The error says why nothing can be
// observed at the moment.
func (o *observation) poll(key string) (election.LeaseObservation, <-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || o.marker == "" {
		return election.LeaseObservation{}, o.changed, o.err
	}
	seen, ok := o.leases[key]
	if !ok {
		seen.observation = observe(Entry{})
	}
	seen.observation.InstanceID = o.marker
	return seen.observation, o.changed, nil
}

// trouble returns why nothing can be observed at the moment, and a channel that is closed when
// that may have changed.
func (o *observation) trouble() (changed <-chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed, o.err
}

func (o *observation) failure() error {
	_, err := o.trouble()
	return err
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

// look is what one watch has shown.
type look struct {
	shown    bool // anything
	unmarked bool // there is no marker, or something else in its place
	old      left // by an earlier run of this proxy
}

// run is one run of a proxy, as one database knows it.
type run struct{ database, presenceID string }

// left are the lives that hold leases in the name of this proxy, by the runs that have begun them.
type left map[run][]string

// watchOnce stores what the watch shows for a while. It returns earlier if something has to be
// done about it, and does that.
func (c *Client) watchOnce() error {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	over := time.AfterFunc(answerTimeout, cancel)
	defer over.Stop()
	var l look
	err := c.store.Watch(ctx, func(s Snapshot) {
		if !l.shown {
			over.Reset(followFor)
		}
		l.shown, l.unmarked = true, !isMarker(s.Marker)
		switch {
		case l.unmarked:
			cancel()
		case c.begins():
			l.old = c.leftIn(s)
			cancel()
		default:
			c.seen.store(s)
		}
	})
	switch {
	case ctx.Err() == nil && err != nil:
		return err
	case !l.shown:
		return fmt.Errorf("%s does not answer: %w", c.cfg.Service, context.DeadlineExceeded)
	case l.unmarked:
		return c.mark()
	case c.begins():
		return c.begin(l.old)
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

// overwritten says that something else stands in the place of the marker.
func (c *Client) overwritten(marker string) error {
	what := "empty"
	if marker != "" {
		what = fmt.Sprintf("not one of Fencepost's (%.20q, %d bytes)", marker, len(marker))
	}
	return fmt.Errorf("the generation marker in %s is %s: somebody has overwritten it (fencepost generation bump writes a new one)", c.cfg.Service, what)
}

// begins reports whether the leases of an earlier run of this proxy have not ended yet.
func (c *Client) begins() bool {
	select {
	case <-c.begun:
		return false
	default:
		return true
	}
}

// leftIn returns the lives that hold leases in the name of this proxy. Before it has begun, these
// are of an earlier run, or of another proxy of the same name.
func (c *Client) leftIn(s Snapshot) left {
	old := left{}
	for key, e := range s.Entries {
		if r := decode(e.Record); e.Life != "" && r.Proxy == c.cfg.Proxy {
			by := run{databaseOf(key), own.Proxy(r.Incarnation)}
			old[by] = append(old[by], e.Life)
		}
	}
	return old
}

// begin ends the leases of an earlier run of this proxy. Those that it has ended are not there when
// it is tried again.
func (c *Client) begin(old left) error {
	var databases []string
	for by := range old {
		databases = append(databases, by.database)
	}
	for by := range old {
		if err := c.awaitEnd(by, databases); err != nil {
			return err
		}
	}
	var group errgroup.Group
	group.SetLimit(endsAtOnce)
	for _, life := range slices.Concat(slices.Collect(maps.Values(old))...) {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(c.ctx, answerTimeout)
			defer cancel()
			if err := c.store.End(ctx, life); err != nil {
				return fmt.Errorf("end a lease of an earlier run: %w", err)
			}
			c.log.Info("ended a lease of an earlier run", zap.String("life", life))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	close(c.begun)
	return nil
}

// awaitEnd returns nil if a run of this proxy is over. The server needs a moment to notice that a proxy was killed.
func (c *Client) awaitEnd(of run, databases []string) error {
	if c.cfg.Runs == nil || of.presenceID == "" {
		return nil
	}
	for deadline := time.Now().Add(endWait); ; {
		err := c.runs(of, databases)
		var denied *election.DeniedError
		if !errors.As(err, &denied) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(minPause):
		case <-c.ctx.Done():
			return err
		}
	}
}

// runs asks whether a run goes on: its own database, and if that does not answer, the others, which know it as well.
func (c *Client) runs(of run, databases []string) (err error) {
	for _, database := range append([]string{of.database}, databases...) {
		ctx, cancel := context.WithTimeout(c.ctx, answerTimeout)
		err = c.cfg.Runs(ctx, database, of.presenceID)
		cancel()
		var denied *election.DeniedError
		if err == nil || errors.As(err, &denied) {
			return err
		}
	}
	return err
}
