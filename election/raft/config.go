package raft

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/files"
)

// Source is the name under which the provider's awards are recorded.
const Source = "raft"

const (
	// defaultHeartbeat is when a node that has received nothing from the leader tries to become one.
	defaultHeartbeat = time.Second
	// leastTTL is the least TTL of a lease in heartbeat timeouts.
	leastTTL = 3
)

// Config is the configuration of a node, or of a client that is none.
type Config struct {
	Name   string            // of this node; stable over restarts
	Listen string            // host:port; default this node's in Peers
	Peers  map[string]string // host:port of all nodes, by name; this one's is how others reach it
	Dir    string            // holds what this node must not forget; "" if this is none
	// The files of TLSClient are needed. They are read again when they change; while they cannot be used, the earlier
	// ones hold. The certificate is shown to clients and to servers. ServerName is what the certificates of the nodes
	// are for; by default, the host of each address.
	files.TLSClient

	Prefix string // of all keys; default kv.DefaultPrefix
	Proxy  string // this proxy's name, for people who read a record
	Logger *zap.Logger
	// Heartbeat is when a node that has received nothing from the leader tries to become one; default 1 s.
	// It must be the same everywhere.
	Heartbeat time.Duration

	patience time.Duration // when a request is no longer repeated; default giveUp, and tests wait for longer
}

func (cfg Config) withDefaults() Config {
	cfg.Prefix, cfg.Logger = kv.Prefix(cfg.Prefix), cmp.Or(cfg.Logger, zap.NewNop())
	cfg.Listen = cmp.Or(cfg.Listen, cfg.Peers[cfg.Name])
	cfg.Heartbeat, cfg.patience = cmp.Or(cfg.Heartbeat, defaultHeartbeat), cmp.Or(cfg.patience, giveUp)
	return cfg
}

// address returns that of this node.
func (cfg Config) address() (string, error) {
	address := cfg.Peers[cfg.Name]
	if address == "" {
		return "", fmt.Errorf("the node %q is not among the peers %s", cfg.Name, strings.Join(slices.Sorted(maps.Keys(cfg.Peers)), ", "))
	}
	return address, nil
}

// newID returns a random id that no one had before.
func newID() string { return rand.Text() }
