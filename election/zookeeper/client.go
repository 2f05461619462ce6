package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/files"
)

// Source is the name under which the provider's awards are recorded.
const Source = "zookeeper"

// Config is the configuration of a connection to ZooKeeper.
type Config struct {
	Servers []string // host:port of the ensemble's servers
	TLS     bool
	// CAFile, CertFile, KeyFile and ServerName apply to TLS. The files are read again when they
	// change; while they cannot be used, the earlier ones hold.
	CAFile, CertFile, KeyFile, ServerName string
	User, Password                        string // of the scheme digest; "" without it
	// PasswordFile, if not "", is used instead of Password, and is read again in the same way.
	PasswordFile string

	Prefix string // of all znodes, without a slash at its beginning; default kv.DefaultPrefix
	// TTL is that of most leases. What is not about a lease is asked in the session with this
	// timeout. Default 10s.
	TTL    time.Duration
	Proxy  string // this proxy's name, for people who read a record
	Logger *zap.Logger
}

// New returns a client that watches the prefix until Close. It does not wait until ZooKeeper is
// reachable.
func New(cfg Config) (*kv.Client, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("zookeeper elector: %w", err)
	}
	c, err := kv.New(kv.Config{Store: s, Source: Source, Service: s.name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("zookeeper elector: %w", err), s.Close())
	}
	return c, nil
}

// open returns a store that connects when it is used.
func open(cfg Config) (*store, error) {
	cfg.Prefix, cfg.Logger = kv.Prefix(cfg.Prefix), cmp.Or(cfg.Logger, zap.NewNop())
	if cfg.TTL == 0 {
		cfg.TTL = 10 * time.Second
	}
	if len(cfg.Servers) == 0 {
		return nil, errors.New("Config.Servers is empty")
	}
	password, err := files.Password(cfg.Logger, "election.zookeeper.password_file", cfg.Password, cfg.PasswordFile)
	if err != nil {
		return nil, err
	}
	e := endpoint{
		name: "ZooKeeper at " + strings.Join(cfg.Servers, ", "), servers: cfg.Servers, serverName: cfg.ServerName,
		user: cfg.User, password: password, identified: cfg.User != "" || cfg.CertFile != "",
		remedy: remedy(cfg), log: cfg.Logger, now: election.Boottime,
	}
	if cfg.TLS {
		config, err := files.ClientTLS(cfg.Logger, "TLS files of ZooKeeper", "", cfg.CAFile, cfg.CertFile, cfg.KeyFile)
		if err != nil {
			return nil, err
		}
		e.security = config.Get
	}
	s := &store{endpoint: e, root: "/" + cfg.Prefix, proxy: cfg.Proxy, ttl: cfg.TTL, log: cfg.Logger}
	s.mu.sessions, s.mu.lives = map[purpose]*session{}, map[string]*life{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.tend)
	return s, nil
}

// remedy says what to do if ZooKeeper denies something.
func remedy(cfg Config) string {
	who := "Set the user (election.zookeeper.user and password or password_file), or a client certificate (cert_file and key_file), that the ACLs name"
	if cfg.User != "" {
		who = "Check election.zookeeper.user and its password (FENCEPOST_ELECTION_ZOOKEEPER_PASSWORD)"
	}
	return fmt.Sprintf("%s: it needs create, read, write and delete (crwd) on /%s and everything below it.", who, cfg.Prefix)
}
