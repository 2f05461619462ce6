package zookeeper

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
	"github.com/fencepost/fencepost/internal/files"
)

// Source is the name under which the provider's awards are recorded.
const Source = "zookeeper"

// Config is the configuration of a connection to ZooKeeper.
type Config struct {
	Servers []string // host:port of the ensemble's servers
	TLS     bool
	// TLSClient applies to TLS. Its files are read again when they change; while they cannot be used, the earlier ones
	// hold.
	files.TLSClient
	files.Login // of the scheme digest; no user without it. Its file is read again in the same way

	Prefix string // of all znodes, without a slash at its beginning; default kv.DefaultPrefix
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
	c, err := kv.New(kv.Config{Store: standstill.New(s, cfg.Proxy, 0), Source: Source, Service: s.name, Proxy: cfg.Proxy, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("zookeeper elector: %w", err)
	}
	return c, nil
}

// open returns a service that connects when it is used.
func open(cfg Config) (*service, error) {
	cfg.Prefix, cfg.Logger = kv.Prefix(cfg.Prefix), cmp.Or(cfg.Logger, zap.NewNop())
	if len(cfg.Servers) == 0 {
		return nil, errors.New("Config.Servers is empty")
	}
	password, err := cfg.WatchPassword(cfg.Logger, "election.zookeeper.password_file")
	if err != nil {
		return nil, err
	}
	e := endpoint{
		name: "ZooKeeper at " + strings.Join(cfg.Servers, ", "), servers: cfg.Servers,
		user: cfg.User, password: password, identified: cfg.User != "" || cfg.CertFile != "",
		remedy: remedy(cfg),
	}
	if cfg.TLS {
		config, err := cfg.TLSClient.Watch(cfg.Logger, "TLS files of ZooKeeper", "")
		if err != nil {
			return nil, err
		}
		e.security = config.Get
	}
	return &service{endpoint: e, root: "/" + cfg.Prefix, conns: map[bool]*connection{}}, nil
}

// remedy says what to do if ZooKeeper denies something.
func remedy(cfg Config) string {
	who := "Set the user (election.zookeeper.user and password or password_file), or a client certificate (cert_file and key_file), that the ACLs name"
	if cfg.User != "" {
		who = "Check election.zookeeper.user and its password (FENCEPOST_ELECTION_ZOOKEEPER_PASSWORD)"
	}
	return fmt.Sprintf("%s: it needs create, read, write and delete (crwd) on /%s and everything below it.", who, cfg.Prefix)
}
