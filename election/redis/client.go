// Package redis implements the lease service with Redis, as a Store of package kv.
//
// # Best effort
//
// Redis is a best-effort lease service. It confirms nothing by a quorum: a failover may forget
// awards, a server without persistence forgets all of them when it restarts, and the server's wall
// clock ends leases. Then two workers are awarded the lease, or a worker loses it although it lives.
// Who may write does not depend on that. The fence alone guards the order: an award of before a
// failover or a restart is refused once a later one has been seen.
//
// # Keys
//
//	<prefix>/.generation    a hash: the marker, and the counter of awards
//	<prefix>/.leases        a hash: <database>/<resource> to version, life and record
//	<prefix>/.life/<id>     a life: its TTL in milliseconds, and it expires by itself
//
// All changes are Lua scripts, each of which Redis runs alone. A lease is held while the life in its
// field exists and has an expiry. So whatever an operator deletes, overwrites or persists frees it.
//
// # Order of awards
//
// The index of an award is the counter. A failover to a replica that lagged, and a restore, repeat
// its numbers next to the same marker. So the marker that the fence gets contains the replication
// id of the master too, which is a new one after each restart and each failover. Each of these
// begins a new generation, and needs no operator.
//
// # Time
//
// Redis counts by the wall clock of its host. A step forward ends leases early. A step backward
// would lengthen them: the watch shortens a life to its TTL again.
//
// # The watch
//
// Redis has none that can be relied on: an expired key is not reported before someone looks for it,
// and messages are lost while no one is connected. The watch asks again and again, by a script that
// answers only what has changed.
package redis

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gomodule/redigo/redis"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/files"
)

// Source is the name under which the provider's awards are recorded.
const Source = "redis"

const (
	// answerTimeout is when a request that was not answered has failed.
	answerTimeout = 2 * time.Second
	// connections is how many a proxy makes at most. Each has one request under way, so on a path with
	// a round trip of 20 ms, four of them would serve 200 requests a second.
	connections = 16
	// others is how many of them serve anything but renewals. A storm of workers that come holds up no
	// renewal.
	others = 8
	// keepAlive is how often the kernel tests a connection on which nothing arrives.
	keepAlive = 5 * time.Second
)

// Config is the configuration of a connection to Redis.
type Config struct {
	Address string // host:port of the master
	TLS     bool
	// TLSClient applies to TLS. Its files are read again when they change; while they cannot be used, the earlier ones
	// hold.
	files.TLSClient
	files.Login     // empty without authentication; User "" is Redis's user "default". Its file is read again in the same way
	Database    int // the number of Redis's database

	Prefix string // of all keys; default kv.DefaultPrefix
	Proxy  string // this proxy's name, for people who read a record
	Logger *zap.Logger
}

// Client is one proxy's use of a Redis.
type Client struct {
	*kv.Client
	store *store
}

// New returns a client that watches the prefix until Close. It does not wait until Redis is
// reachable.
func New(cfg Config) (*Client, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("redis elector: %w", err)
	}
	c, err := kv.New(kv.Config{Store: s, Source: Source, Service: s.name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("redis elector: %w", err), s.Close())
	}
	return &Client{c, s}, nil
}

// open returns a store that connects when it is used.
func open(cfg Config) (*store, error) {
	cfg.Prefix, cfg.Logger = kv.Prefix(cfg.Prefix), cmp.Or(cfg.Logger, zap.NewNop())
	password, err := cfg.WatchPassword(cfg.Logger, "election.redis.password_file")
	if err != nil {
		return nil, err
	}
	dial := (&net.Dialer{KeepAlive: keepAlive}).DialContext
	if cfg.TLS {
		if dial, err = secure(cfg, dial); err != nil {
			return nil, err
		}
	}
	s := newStore(cfg)
	s.pool = &redis.Pool{
		MaxIdle: connections, MaxActive: connections, Wait: true,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, answerTimeout)
			defer cancel()
			conn, err := redis.DialContext(ctx, "tcp", cfg.Address,
				redis.DialContextFunc(dial), redis.DialUsername(cfg.User), redis.DialPassword(password()), redis.DialDatabase(cfg.Database),
				redis.DialReadTimeout(answerTimeout), redis.DialWriteTimeout(answerTimeout))
			if err != nil {
				return nil, err
			}
			if err := s.greet(ctx, conn); err != nil {
				_ = conn.Close() // what matters is why it is closed
				return nil, err
			}
			return conn, nil
		},
		TestOnBorrow: func(_ redis.Conn, lastUsed time.Time) error { return s.usable(lastUsed) },
	}
	return s, nil
}

// secure returns a function that connects over TLS with the files as they are at the time.
func secure(cfg Config, dial func(ctx context.Context, network, address string) (net.Conn, error)) (func(context.Context, string, string) (net.Conn, error), error) {
	config, err := tlsOf(cfg)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := tls.Client(plain, config.Get())
		if err := conn.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, plain.Close())
		}
		return conn, nil
	}, nil
}
