package consul

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
)

const (
	// watchWait is how long Consul holds a watch open. It is also the timer
	// beside it: what a watch missed is seen with the next one.
	watchWait = 10 * time.Second
	// watchTimeout leaves room for the jitter that Consul adds.
	watchTimeout = watchWait + watchWait/16 + 5*time.Second
	maxPause     = 2 * time.Second
)

// observation is what the watch last saw of all keys below the prefix.
type observation struct {
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced with each news
	instanceID string        // "" before the first answer
	err        error
	leases     map[string]election.LeaseObservation
}

func (o *observation) init() { o.changed = make(chan struct{}) }

// poll returns the sight of a key, and a channel that is closed when there may
// be news. The sight is Unseen before the first answer. The error says why
// nothing can be seen now.
func (o *observation) poll(key string) (election.LeaseObservation, <-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch sight, ok := o.leases[key]; {
	case o.err != nil:
		return election.LeaseObservation{}, o.changed, o.err
	case ok:
		return sight, o.changed, nil
	case o.instanceID != "":
		return observationOf(nil, o.instanceID), o.changed, nil
	default:
		return election.LeaseObservation{}, o.changed, nil
	}
}

func (o *observation) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *observation) store(pairs api.KVPairs, marker string) {
	sights := make(map[string]election.LeaseObservation, len(pairs))
	for _, pair := range pairs {
		sights[pair.Key] = observationOf(pair, marker)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases, o.instanceID, o.err = sights, marker, nil
	close(o.changed)
	o.changed = make(chan struct{})
}

// fail reports whether this is the first failure after a success.
func (o *observation) fail(err error) (first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first = o.err == nil
	o.err = err
	close(o.changed)
	o.changed = make(chan struct{})
	return first
}

// watch keeps the observation up to date until Close. One request serves all
// databases and resources of this proxy.
func (c *Client) watch() {
	defer c.wg.Done()
	var index uint64
	pause := 100 * time.Millisecond
	for c.ctx.Err() == nil {
		next, err := c.watchOnce(index)
		if err == nil {
			index, pause = next, 100*time.Millisecond
			continue
		}
		index = 0 // whatever it was, look at all of it next time
		if c.ctx.Err() != nil {
			return
		}
		if c.seen.fail(err) {
			c.log.Warn("cannot watch leases in consul", zap.Error(err))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
		}
		pause = min(2*pause, maxPause)
	}
}

// watchOnce waits for an index above the given one, stores what it sees, and
// returns the index to go on from.
func (c *Client) watchOnce(index uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(c.ctx, watchTimeout)
	defer cancel()
	if err := c.begin(ctx); err != nil {
		return 0, err
	}
	opts := (&api.QueryOptions{WaitIndex: index, WaitTime: watchWait, RequireConsistent: true}).WithContext(ctx)
	pairs, meta, err := c.api.KV().List(c.cfg.Prefix+"/", opts)
	if err != nil {
		return 0, fmt.Errorf("watch %s/: %w", c.cfg.Prefix, err)
	}
	marker := c.instanceIDIn(pairs)
	if marker == "" {
		return 0, c.publishInstanceID(ctx) // and look again
	}
	c.seen.store(pairs, marker)
	switch {
	case meta.LastIndex < index: // it went back, as after a restore
		return 0, nil
	case meta.LastIndex == 0: // would not block
		return 1, nil
	}
	return meta.LastIndex, nil
}

// instanceIDIn returns the marker, "" if it is not among the pairs.
func (c *Client) instanceIDIn(pairs api.KVPairs) string {
	for _, pair := range pairs {
		if pair.Key == c.instanceKey() {
			return string(pair.Value)
		}
	}
	return ""
}

// publishInstanceID makes the marker. If it is there already, and was not shown, nobody
// can bid.
func (c *Client) publishInstanceID(ctx context.Context) error {
	made, err := c.makeInstanceID(ctx)
	if err != nil || made {
		return err
	}
	switch pair, _, err := c.api.KV().Get(c.instanceKey(), read(ctx)); {
	case err != nil:
		return fmt.Errorf("look at %s: %w", c.instanceKey(), err)
	case pair != nil && len(pair.Value) > 0: // made by another proxy just now
		return nil
	}
	return fmt.Errorf("consul does not show %s, or it is empty: the token lacks key:read, or somebody overwrote it (fencepost generation bump makes a new one)", c.instanceKey())
}
