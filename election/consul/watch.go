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
	// watchWait is how long Consul holds a watch request open. Whatever one request
	// missed is seen by the next.
	watchWait = 4 * time.Second
	// watchTimeout is when a Consul that has not answered counts as unreachable: until
	// then, a lease of another proxy is said to be led. It leaves room for the jitter that
	// Consul adds.
	watchTimeout = watchWait + watchWait/16 + 2*time.Second
	maxPause     = 2 * time.Second
)

// observation is what the watch last saw of all keys under the prefix.
type observation struct {
	mu         sync.Mutex
	changed    chan struct{} // closed and replaced with each change
	instanceID string        // "" before the first response
	err        error
	leases     map[string]election.LeaseObservation
}

func (o *observation) init() { o.changed = make(chan struct{}) }

// poll returns the observation of a key, and a channel that is closed when it may have
// changed. The observation is Unseen before the first response. The error says why
// nothing can be observed at the moment.
func (o *observation) poll(key string) (election.LeaseObservation, <-chan struct{}, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch obs, ok := o.leases[key]; {
	case o.err != nil:
		return election.LeaseObservation{}, o.changed, o.err
	case ok:
		return obs, o.changed, nil
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

func (o *observation) store(pairs api.KVPairs, instanceID string) {
	leases := make(map[string]election.LeaseObservation, len(pairs))
	for _, pair := range pairs {
		leases[pair.Key] = observationOf(pair, instanceID)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.leases, o.instanceID, o.err = leases, instanceID, nil
	close(o.changed)
	o.changed = make(chan struct{})
}

// fail records why nothing can be observed.
func (o *observation) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
	close(o.changed)
	o.changed = make(chan struct{})
}

// watch keeps the observation up to date until Close. One request serves all databases
// and resources of this proxy.
func (c *Client) watch() {
	defer c.wg.Done()
	var index uint64
	pause := 100 * time.Millisecond
	for c.ctx.Err() == nil {
		next, err := c.watchOnce(index)
		if err == nil {
			index, pause = next, 100*time.Millisecond
			c.failing.Passed()
			continue
		}
		index = 0 // read everything next time, whatever the error was
		if c.ctx.Err() != nil {
			return
		}
		c.seen.fail(c.denied(err))
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

// watchOnce waits for an index above the given one, stores what it observes, and
// returns the index to continue from.
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
	instanceID := c.instanceIDIn(pairs)
	if instanceID == "" {
		return 0, c.publishInstanceID(ctx) // and read again
	}
	c.seen.store(pairs, instanceID)
	switch {
	case meta.LastIndex < index: // the index went back, as after a restore
		return 0, nil
	case meta.LastIndex == 0: // an index of 0 would not block
		return 1, nil
	}
	return meta.LastIndex, nil
}

// instanceIDIn returns the instance id, or "" if it is not among the pairs.
func (c *Client) instanceIDIn(pairs api.KVPairs) string {
	for _, pair := range pairs {
		if pair.Key == c.instanceKey() {
			return string(pair.Value)
		}
	}
	return ""
}

// publishInstanceID creates the instance id. If there is one already that the watch
// could not read, nobody can acquire a lease, and the error says so.
func (c *Client) publishInstanceID(ctx context.Context) error {
	made, err := c.makeInstanceID(ctx)
	if err != nil || made {
		return err
	}
	switch pair, _, err := c.api.KV().Get(c.instanceKey(), read(ctx)); {
	case err != nil:
		return fmt.Errorf("read %s: %w", c.instanceKey(), err)
	case pair != nil && len(pair.Value) > 0: // another proxy has just created it
		return nil
	}
	return fmt.Errorf("consul does not return %s, or it is empty: the token lacks key:read, or the key was overwritten (fencepost generation bump creates a new one)", c.instanceKey())
}
