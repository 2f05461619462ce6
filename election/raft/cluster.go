package raft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/election/raft/state"
)

const (
	// mostAnswer bounds an answer, in bytes.
	mostAnswer = 64 << 20
	// pingAfter and pingTimeout are when a connection without answers is given up.
	pingAfter   = 2 * time.Second
	pingTimeout = 3 * time.Second
)

// cluster is the nodes as others see them.
type cluster struct {
	security *security
	peers    map[string]string // addresses by name
	names    []string          // of the peers, sorted
	next     atomic.Int64      // which of the names is asked
	client   *http.Client
	giveUp   time.Duration // that of the configuration
	// meant is the identity of the cluster that is meant, as a node knows it; "" if any may be, because a
	// new one may have begun.
	meant string
}

func newCluster(cfg Config) (*cluster, error) {
	if len(cfg.Peers) == 0 {
		return nil, errors.New("no peers are named")
	}
	s, err := newSecurity(cfg, cfg.Logger)
	if err != nil {
		return nil, err
	}
	return &cluster{security: s, peers: maps.Clone(cfg.Peers), names: slices.Sorted(maps.Keys(cfg.Peers)), client: newHTTPClient(s), giveUp: cfg.giveUp}, nil
}

func newHTTPClient(s *security) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return s.dial(ctx, address, requestProtocol)
		},
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}}
}

// without returns the nodes other than one, over the same connections.
func (c *cluster) without(name string) *cluster {
	names := slices.DeleteFunc(slices.Clone(c.names), func(other string) bool { return other == name })
	return &cluster{security: c.security, peers: c.peers, names: names, client: c.client, giveUp: c.giveUp, meant: c.meant}
}

// apart returns the same nodes, over connections of its own.
func (c *cluster) apart() *cluster {
	return &cluster{security: c.security, peers: c.peers, names: c.names, client: newHTTPClient(c.security), giveUp: c.giveUp, meant: c.meant}
}

// String names the cluster in errors.
func (c *cluster) String() string {
	all := make([]string, len(c.names))
	for i, name := range c.names {
		all[i] = name + " (" + c.peers[name] + ")"
	}
	return "raft at " + strings.Join(all, ", ")
}

// scope is how far the node that is asked may pass a request on. Its value is that of a header.
type scope string

const (
	anywhere scope = ""        // to the leader, or to others if it knows of none
	onward   scope = "onward"  // to the leader
	nowhere  scope = "nowhere" // it answers as the leader, or not at all
)

// ask sends a request to a node.
func (c *cluster) ask(ctx context.Context, name string, r request, far scope, into any) error {
	text, err := json.Marshal(r.in)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	address := c.peers[name]
	if address == "" {
		return fmt.Errorf("the node %s is not among the peers of the configuration", name)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+pathPrefix+string(r.op), bytes.NewReader(text))
	if err != nil {
		return err
	}
	if far != anywhere {
		req.Header.Set(scopeHeader, string(far))
	}
	if c.meant != "" {
		req.Header.Set(clusterHeader, c.meant)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	defer func() { _ = resp.Body.Close() }() // its end was read, or does not matter
	answer, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer))
	if err != nil {
		return fmt.Errorf("node %s: read its answer: %w", name, err)
	}
	if id := resp.Header.Get(clusterHeader); id != "" && c.meant != "" && id != c.meant {
		return fmt.Errorf("node %s: %w", name, errOtherCluster)
	}
	if resp.StatusCode != http.StatusOK {
		return c.failed(name, resp.Status, answer)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("node %s: decode its answer: %w", name, err)
	}
	return nil
}

// failed returns the error that an answer is.
func (c *cluster) failed(name, status string, answer []byte) error {
	var f fault
	if err := json.Unmarshal(answer, &f); err != nil || f.Error == "" {
		return fmt.Errorf("node %s answered %s", name, status)
	}
	if f.Refused {
		return &refusal{f.Error}
	}
	return fmt.Errorf("node %s: %s", name, f.Error)
}

// askAny asks one node, and leaves it to the next one if that fails.
func (c *cluster) askAny(ctx context.Context, r request, far scope, into any) error {
	i := c.next.Load()
	err := c.ask(ctx, c.names[int(i)%len(c.names)], r, far, into)
	if err != nil && !final(err) {
		c.next.CompareAndSwap(i, (i+1)%int64(len(c.names)))
	}
	return err
}

// call implements replica: any node passes the request on to the leader.
func (c *cluster) call(ctx context.Context, r request, into any) error {
	return persist(ctx, c.giveUp, func(ctx context.Context) error { return c.askAny(ctx, r, anywhere, into) })
}

// changes implements replica, with that of any node.
func (c *cluster) changes(ctx context.Context, r changesRequest) (d state.Delta, err error) {
	req := request{op: opChanges, in: r}
	if r.First {
		err := c.call(ctx, req, &d)
		return d, err
	}
	for {
		one, cancel := context.WithTimeout(ctx, mostWait+attemptTimeout)
		err := c.askAny(one, req, anywhere, &d)
		cancel()
		if err != nil || d.Upto > r.Since {
			return d, err
		}
	}
}

// healthy implements replica: there is no node here.
func (c *cluster) healthy() error { return nil }

// close implements replica.
func (c *cluster) close() error {
	c.client.CloseIdleConnections()
	return nil
}
