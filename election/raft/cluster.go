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

// cluster is the nodes as others see them. A proxy that is a node uses it too.
type cluster struct {
	security *security
	peers    map[string]string // addresses by name
	names    []string          // of the peers, sorted
	next     atomic.Int64      // which of the names is asked; at first this proxy itself, if it is a node
	client   *http.Client
	patience time.Duration // for a request that is not answered
}

func newCluster(cfg Config) (*cluster, error) {
	if len(cfg.Peers) == 0 {
		return nil, errors.New("no peers are named")
	}
	s, err := newSecurity(cfg, cfg.Logger)
	if err != nil {
		return nil, err
	}
	c := &cluster{security: s, peers: maps.Clone(cfg.Peers), names: slices.Sorted(maps.Keys(cfg.Peers)), patience: cfg.patience}
	c.next.Store(int64(max(0, slices.Index(c.names, cfg.Name))))
	c.client = &http.Client{Transport: &http.Transport{
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return s.dial(ctx, address, requestProtocol)
		},
		ForceAttemptHTTP2: true,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}}
	return c, nil
}

// String names the cluster in errors.
func (c *cluster) String() string {
	all := make([]string, len(c.names))
	for i, name := range c.names {
		all[i] = name + " (" + c.peers[name] + ")"
	}
	return "raft at " + strings.Join(all, ", ")
}

// ask sends a request to a node. onward: it may pass the request on to the leader.
func (c *cluster) ask(ctx context.Context, name string, r request, onward bool, into any) error {
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
	if onward {
		req.Header.Set(onwardHeader, "true")
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
	if resp.StatusCode != http.StatusOK {
		return failed(name, resp.Status, answer)
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
func failed(name, status string, answer []byte) error {
	var f fault
	switch err := json.Unmarshal(answer, &f); {
	case err != nil || f.Error == "":
		return fmt.Errorf("node %s answered %s", name, status)
	case f.Refused:
		return &refusal{f.Error}
	}
	return fmt.Errorf("node %s: %s", name, f.Error)
}

// askAny asks one node, which passes the request on to the leader, and leaves it to the next one if that fails.
func (c *cluster) askAny(ctx context.Context, r request, into any) error {
	i := c.next.Load()
	err := c.ask(ctx, c.names[i], r, true, into)
	var refused *refusal
	if err != nil && !errors.As(err, &refused) {
		c.next.CompareAndSwap(i, (i+1)%int64(len(c.names)))
	}
	return err
}

// call has the leader answer a request, which it may be sent several times.
func (c *cluster) call(ctx context.Context, r request, into any) error {
	return persist(ctx, c.patience, func(ctx context.Context) error { return c.askAny(ctx, r, into) })
}

// changes waits for changes.
func (c *cluster) changes(ctx context.Context, r changesRequest) (d state.Delta, err error) {
	for {
		one, cancel := context.WithTimeout(ctx, mostWait+attemptTimeout)
		err := c.askAny(one, request{op: opChanges, in: r}, &d)
		cancel()
		if err != nil || d.Upto > r.Since {
			return d, err
		}
	}
}

func (c *cluster) close() { c.client.CloseIdleConnections() }
