// Package consul implements the lease service with Consul, as a Store of package kv.
//
// # Keys
//
//	<prefix>/.generation            the marker
//	<prefix>/<database>/<resource>  the record of a lease, locked by the session that is the holder's life
//
// An award is one transaction that writes the record and locks it. The lease is held while the
// record is locked and is the one that was written with the lock. So a session that expires or
// is destroyed frees the lease, which unlocks the record. A plain PUT leaves the record locked and
// sets its LockIndex to 0, which frees the lease as well.
//
// # Order of awards
//
// The index of an award is the ModifyIndex of its record. It grows throughout the life of one
// Consul cluster, even if the key is deleted in between. (LockIndex does not: it starts over with
// the key.)
//
// # Sessions
//
// Sessions have a TTL and no health checks: a check would tie the lease to the agent's node, and
// a flapping agent would lose it. Consul's leader counts the time, and ends a session between one
// and two TTLs after it was last renewed. A new leader restarts every TTL.
//
// # Permissions
//
// With ACLs enabled, the token needs key:write on the prefix (which includes reading and listing)
// and session:write on the agent's node.
package consul

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/files"
)

const (
	// Source is the name under which the provider's awards are recorded.
	Source = "consul"
	// DefaultLockDelay is how long Consul blocks a lease whose session was lost. It gives an old
	// holder time to stop, which the fence makes unnecessary. Consul takes 0 for 15 s.
	DefaultLockDelay = time.Millisecond
	// maxConns stays well below Consul's limit of 200 connections per client address,
	// which includes renewals.
	maxConns       = 64
	connectTimeout = 5 * time.Second // also for TLS
)

// Config is the configuration of a connection to Consul.
type Config struct {
	Address string // host:port; default 127.0.0.1:8500
	Scheme  string // http (default) or https
	Token   string
	// TLSClient applies to https. Its files are read again when they change; while they cannot be used, the earlier ones
	// hold.
	files.TLSClient

	Prefix    string        // of all keys; default kv.DefaultPrefix
	Proxy     string        // this proxy's name, for people who read a record
	LockDelay time.Duration // default DefaultLockDelay
	Logger    *zap.Logger
}

// New returns a client that watches the prefix until Close. It does not wait until
// Consul is reachable.
func New(cfg Config) (*kv.Client, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("consul elector: %w", err)
	}
	c, err := kv.New(kv.Config{Store: s, Source: Source, Service: s.name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("consul elector: %w", err), s.Close())
	}
	return c, nil
}

// open returns a store that connects when it is used.
func open(cfg Config) (*consulStore, error) {
	dialer := &net.Dialer{Timeout: connectTimeout, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: connectTimeout,
		MaxConnsPerHost:     maxConns,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     90 * time.Second,
		DisableCompression:  true, // responses are small, and the agent is near
	}
	if cfg.Scheme == "https" {
		security, err := cfg.TLSClient.Watch(cmp.Or(cfg.Logger, zap.NewNop()), "TLS files of Consul", "")
		if err != nil {
			return nil, err
		}
		transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connectTimeout)
			defer cancel()
			return (&tls.Dialer{NetDialer: dialer, Config: security.Get()}).DialContext(ctx, network, address)
		}
	}
	client, err := api.NewClient(&api.Config{
		Address: cfg.Address, Scheme: cfg.Scheme, Token: cfg.Token, Transport: transport,
		TLSConfig: api.TLSConfig{Address: cfg.ServerName, CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile},
	})
	if err != nil {
		return nil, err
	}
	return &consulStore{
		api: client, transport: transport,
		prefix:   kv.Prefix(cfg.Prefix) + "/",
		name:     "Consul at " + cmp.Or(cfg.Address, "127.0.0.1:8500"),
		hasToken: cfg.Token != "",
		session: api.SessionEntry{
			Name: "fencepost/" + cfg.Proxy, LockDelay: cmp.Or(cfg.LockDelay, DefaultLockDelay), Behavior: api.SessionBehaviorRelease,
		},
	}, nil
}
