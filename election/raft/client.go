package raft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// Client is one proxy's use of the cluster.
type Client struct {
	*kv.Client
	node *node // that this proxy is; nil if it is none
}

// New returns a client that watches the prefix until Close. If Dir is set, this proxy is a node,
// which New starts and Close stops; the directory must be that of the node. New does not wait until there is a leader.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	c := &Client{}
	var err error
	if cfg.Dir != "" {
		if c.node, err = start(cfg); err != nil {
			return nil, fmt.Errorf("raft elector: %w", err)
		}
	}
	nodes, err := newCluster(cfg)
	if err == nil {
		name := "raft at " + strings.Join(slices.Sorted(maps.Values(cfg.Peers)), ", ")
		store := standstill.New(&service{nodes: nodes, space: cfg.Prefix, name: name}, cfg.Proxy, leastTTL*cfg.Heartbeat)
		c.Client, err = kv.New(kv.Config{Store: store, Source: Source, Service: name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("raft elector: %w", err), c.stop())
	}
	return c, nil
}

// Healthy returns why this proxy's own node does not serve the cluster, or why the cluster cannot be
// used at the moment; nil if all is well. The former is an *elector.LimitedError.
func (c *Client) Healthy() error {
	if c.node != nil {
		if err := c.node.healthy(); err != nil {
			return err
		}
	}
	return c.Client.Healthy()
}

// Close stops the watch, and the node of this proxy.
func (c *Client) Close() error { return errors.Join(c.Client.Close(), c.stop()) }

func (c *Client) stop() error {
	if c.node == nil {
		return nil
	}
	if err := c.node.close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the node %s of raft: %w", c.node.cfg.Name, err)
	}
	return nil
}
