package raft

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/election/kv"
)

// Client is one proxy's use of the cluster.
type Client struct {
	*kv.Client
	replica replica
}

// New returns a client that watches the prefix until Close. If Dir is set, this proxy is a node,
// which New starts and Close stops; the directory must be that of the node. Otherwise the client
// sends its requests to the peers. New does not wait until there is a leader.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	var r replica
	var service string
	var err error
	if cfg.Dir != "" {
		service = "raft, node " + cfg.Name
		r, err = startInTime(cfg)
	} else {
		service = "raft at " + strings.Join(slices.Sorted(maps.Values(cfg.Peers)), ", ")
		r, err = newCluster(cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("raft elector: %w", err)
	}
	return newClient(cfg, r, service)
}

// newClient returns a client that uses r, and closes it.
func newClient(cfg Config, r replica, service string) (*Client, error) {
	client, err := kv.New(kv.Config{Store: newStore(r, cfg, service), Source: Source, Service: service, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raft elector: %w", err), r.close())
	}
	return &Client{client, r}, nil
}

// Healthy returns why this proxy's own node is of no use to the cluster, or why the cluster cannot be
// used at the moment; nil if all is well. The former is an *election.LimitedError.
func (c *Client) Healthy() error {
	if err := c.replica.healthy(); err != nil {
		return err
	}
	return c.Client.Healthy()
}
