// Package etcd implements the lease service with etcd, as a Store of package kv.
//
// # Keys
//
//	<prefix>/.generation                  the marker
//	<prefix>/<database>/<resource>        the record of a lease
//	<prefix>/<database>/<resource>/.held attached to the etcd lease that is the holder's life
//
// An award is one transaction that writes the record and the key .held. The lease is held while
// both are of the same revision. So an etcd lease that expires or is revoked frees it, which
// deletes the key .held, and so does a plain put over either key, which takes the key .held from
// its etcd lease or gives the record another revision.
//
// # Order of awards
//
// The index of an award is the revision of its transaction. It grows throughout the life of one
// etcd cluster, whatever happens to a key. A restore repeats revisions, under the same cluster
// id, member ids and raft term.
//
// # Time
//
// etcd takes TTLs in whole seconds, and raises one that is shorter than one and a half of its
// election timeouts (2 s by default). Its leader counts the time. A new leader, or a restart,
// restarts every TTL, so a TTL is a lower bound only.
//
// # Permissions
//
// With authentication enabled, the user needs a role with the permission readwrite on the
// prefix (<prefix>/ with --prefix). etcd lets it revoke any etcd lease that is attached to no
// other keys.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/files"
)

// Source is the name under which the provider's awards are recorded.
const Source = "etcd"

// A member that does not answer is noticed by these. etcd's servers close a connection on which
// pings come more often than every 5 s.
const (
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
)

// tries is how often each request of a renewal is sent until it is answered. Each goes to the next
// member, so that one that is frozen, out of three or more, gets at most every other of them.
const tries = 4

// connecting paces the attempts to connect to a member. No one leads while none can be reached.
var connecting = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// Config is the configuration of a connection to etcd.
type Config struct {
	Endpoints []string // host:port of members
	TLS       bool
	// TLSClient applies to TLS. Its files are read again when they change; while they cannot be used, the earlier ones
	// hold.
	files.TLSClient
	files.Login // empty without authentication. Its file is read again in the same way

	Prefix string // of all keys; default kv.DefaultPrefix
	Proxy  string // this proxy's name, for people who read a record
	Logger *zap.Logger
}

// New returns a client that watches the prefix until Close. It does not wait until etcd is
// reachable.
func New(cfg Config) (*kv.Client, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("etcd elector: %w", err)
	}
	c, err := kv.New(kv.Config{Store: s, Source: Source, Service: s.name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("etcd elector: %w", err), s.Close())
	}
	return c, nil
}

// open returns a store that connects when it is used.
func open(cfg Config) (*etcdStore, error) {
	cfg.Prefix, cfg.Logger = kv.Prefix(cfg.Prefix), cmp.Or(cfg.Logger, zap.NewNop())
	password, err := cfg.WatchPassword(cfg.Logger, "election.etcd.password_file")
	if err != nil {
		return nil, err
	}
	scheme, security := "http://", insecure.NewCredentials()
	if cfg.TLS {
		scheme = "https://"
		if security, err = newSecurity(cfg); err != nil {
			return nil, err
		}
	}
	endpoints := make([]string, len(cfg.Endpoints))
	for i, e := range cfg.Endpoints {
		endpoints[i] = scheme + e
	}
	s := &etcdStore{
		prefix: cfg.Prefix + "/", name: "etcd at " + strings.Join(cfg.Endpoints, ", "),
		login: login{user: cfg.User, password: password},
	}
	s.login.ask = s.authenticate
	s.login.ctx, s.cancel = context.WithCancel(context.Background())
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security), grpc.WithConnectParams(connecting), grpc.WithPerRPCCredentials(&s.login),
		grpc.WithChainUnaryInterceptor(failFast), grpc.WithChainStreamInterceptor(failFastStream),
	}
	if cfg.ServerName != "" { // gRPC would expect the host of the endpoint, whatever tls.Config says
		options = append(options, grpc.WithAuthority(cfg.ServerName))
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:         endpoints,
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout,
		// The caller repeats what fails, and knows what may be repeated.
		MaxUnaryRetries: 1,
		// What it says is also in the errors.
		Logger:      zap.NewNop(),
		DialOptions: options,
	})
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.client = client
	return s, nil
}
