// Package config is the configuration of the command: its file, the environment variables
// that override it, the defaults, and the rules that a configuration must follow.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/election"
)

// Config is the configuration file. docs/configuration.md and the pages of the lease
// services explain each setting; etc/fencepost.yml is an annotated sample. Tests compare
// them with this struct and with Default. A group with the tag short may also be one value,
// which is that of the setting in it that the tag names.
type Config struct {
	Listen         Addresses           `yaml:"listen"`
	ListenMode     FileMode            `yaml:"listen_mode"` // of Unix sockets in Listen
	ProxyProtocol  ProxyProtocol       `yaml:"proxy_protocol"`
	Admin          Admin               `yaml:"admin" short:"address"`
	Console        Console             `yaml:"console"`
	Pprof          bool                `yaml:"pprof"`
	TLS            TLS                 `yaml:"tls"`
	Upstream       Upstream            `yaml:"upstream"`
	Control        Control             `yaml:"control"`
	Election       Election            `yaml:"election"`
	Lease          Lease               `yaml:"lease"`
	StartupWait    Duration            `yaml:"startup_wait"`
	StartupTimeout Duration            `yaml:"startup_timeout"`
	ShutdownDelay  Duration            `yaml:"shutdown_delay"`
	DrainTimeout   Duration            `yaml:"drain_timeout"`
	Unfenced       Unfenced            `yaml:"unfenced" short:"default"`
	Worker         Worker              `yaml:"worker"`
	Resources      map[string]Resource `yaml:"resources"`
	// UnknownResources is "allow" or "deny", for those that Resources does not list.
	UnknownResources string `yaml:"unknown_resources"`
	Routes           Routes `yaml:"routes"`
	Proxy            Proxy  `yaml:"proxy"`
	Limits           Limits `yaml:"limits"`
	Log              Log    `yaml:"log"`
	Audit            Audit  `yaml:"audit"`
}

// ProxyProtocol says which load balancers in front of Fencepost send it the addresses of their
// clients.
type ProxyProtocol struct {
	Trusted Subnets `yaml:"trusted"`
}

// Upstream is the Postgres that clients are connected to. If Address has several hosts, it is
// the primary among them.
type Upstream struct {
	Address         Addresses   `yaml:"address"`
	ApplicationName string      `yaml:"application_name"` // "client" or "worker"
	TLS             UpstreamTLS `yaml:"tls"`
}

// Control is the role under which Fencepost itself connects to the upstream, in
// each client's own database.
type Control struct {
	User     string `yaml:"user"`
	Password string `yaml:"password"`
	// ProbeDatabase is examined before the first worker connects. "" means the databases
	// that the role finds.
	ProbeDatabase string `yaml:"probe_database"`
}

// Election says which provider awards the leases, and has the settings of each
// provider that has any.
type Election struct {
	Provider   string     `yaml:"provider"` // the name of a Provider
	Consul     Consul     `yaml:"consul"`
	Etcd       Etcd       `yaml:"etcd"`
	Kubernetes Kubernetes `yaml:"kubernetes"`
	Raft       Raft       `yaml:"raft"`
	Redis      Redis      `yaml:"redis"`
	ZooKeeper  ZooKeeper  `yaml:"zookeeper"`
}

// Lease sets the times of leases. Time decides who may try to lead; the registry in
// the database decides who may write.
type Lease struct {
	TTL              Duration `yaml:"ttl"`
	WorkerTimeout    Duration `yaml:"worker_timeout"`
	MaxWorkerTimeout Duration `yaml:"max_worker_timeout"`
	MaxTimeoutFactor int      `yaml:"max_worker_timeout_factor"`
	Grace            Duration `yaml:"grace"`
	Linger           Duration `yaml:"linger"`
}

// Unfenced says what connections that name no resource may do.
type Unfenced struct {
	Default string            `yaml:"default"` // "allow", "read-only" or "refuse"
	Users   map[string]string `yaml:"users"`
}

// Worker says how to identify a connection that names no worker.
type Worker struct {
	Identity string `yaml:"identity"` // "connection", "client_address" or "proxy"
}

// Resource overrides settings for one resource. A nil field means the setting in
// lease.
type Resource struct {
	TTL              *Duration `yaml:"ttl"`
	WorkerTimeout    *Duration `yaml:"worker_timeout"`
	MaxWorkerTimeout *Duration `yaml:"max_worker_timeout"`
	Linger           *Duration `yaml:"linger"`
	Announce         string    `yaml:"announce"` // "per-worker" or "per-connection"
	Enforce          string    `yaml:"enforce"`  // "on" or "shadow"
	OnStale          string    `yaml:"on_stale"` // "reject" or "discard"
	Fence            string    `yaml:"fence"`    // "session" or "tables"
	Users            []string  `yaml:"users"`    // roles that may campaign; nil means all
	Election         string    `yaml:"election"` // "lease" or "token"
	MaxJump          int       `yaml:"max_jump"` // 0: no limit
}

// Proxy names this proxy in leases and logs.
type Proxy struct {
	ID string `yaml:"id"`
}

// The values of unknown_resources.
const (
	allowUnknown = "allow"
	denyUnknown  = "deny"
)

// OnlyKnown reports whether every resource that is not configured is refused.
func (c *Config) OnlyKnown() bool { return c.UnknownResources == denyUnknown }

// Limits limits the resources of the proxy that clients can use.
type Limits struct {
	MaxConnections         int      `yaml:"max_connections"`
	MaxResources           int      `yaml:"max_resources"`
	ResourcesPerUser       int      `yaml:"resources_per_user"`       // 0: no limit
	ResourcesPerConnection int      `yaml:"resources_per_connection"` // 0: no limit
	ResourceIdle           Duration `yaml:"resource_idle"`
}

// Log sets the format of the log on standard error.
type Log struct {
	Level  string `yaml:"level"`  // "debug", "info", "warn" or "error"
	Format string `yaml:"format"` // "json" or "console"
	// Connections logs the begin and the end of each session.
	Connections bool `yaml:"connections"`
}

// Default returns all defaults.
func Default() Config {
	return Config{
		Listen:     Addresses{"127.0.0.1:6432"},
		ListenMode: 0o777,
		Admin:      Admin{Address: "127.0.0.1:6433", OpenReads: true},
		Console:    Console{Database: "fencepost"},
		TLS:        TLS{Mode: "disable", ClientCert: "optional", MinVersion: "1.2"},
		Upstream: Upstream{
			Address:         Addresses{"127.0.0.1:5432"},
			ApplicationName: "client",
			TLS:             UpstreamTLS{Mode: "disable", MinVersion: "1.2"},
		},
		Control: Control{User: "fencepost"},
		Election: Election{
			Provider:   "postgres",
			Consul:     defaultConsul,
			Etcd:       defaultEtcd,
			Kubernetes: defaultKubernetes,
			Redis:      defaultRedis,
			ZooKeeper:  defaultZooKeeper,
		},
		Lease: Lease{
			TTL:              Duration(10 * time.Second),
			WorkerTimeout:    Duration(30 * time.Second),
			MaxTimeoutFactor: election.DefaultMaxTimeoutFactor,
			Grace:            Duration(2 * time.Second),
			Linger:           0,
		},
		StartupWait:      Duration(2 * time.Second),
		StartupTimeout:   Duration(10 * time.Second),
		DrainTimeout:     Duration(10 * time.Second),
		Unfenced:         Unfenced{Default: "read-only"},
		Worker:           Worker{Identity: "connection"},
		UnknownResources: allowUnknown,
		Limits:           Limits{MaxConnections: 1000, MaxResources: 1000, ResourcesPerUser: 100, ResourcesPerConnection: 64, ResourceIdle: Duration(election.DefaultIdle)},
		Log:              Log{Level: "info", Format: "json"},
		Audit:            Audit{Table: true, Keep: Age(30 * day)},
	}
}

// Load reads the file (none if path is empty), applies the environment variables that
// override it (environ, each name=value), and validates the result. The error lists
// everything that is wrong, one mistake of the user per line, each with the file and line
// or the variable where it is.
func Load(path string, environ []string, providers []Provider) (Config, error) {
	cfg := Default()
	d := decoder{file: path, sources: sources{}}
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return cfg, fmt.Errorf("read the configuration: %w", err)
		}
		d.decode(text, &cfg)
	}
	d.override(environ, &cfg)
	for _, text := range cfg.validate(providers) {
		f := fault{text: text}
		if source := d.sources.of(text); source != "" {
			f.text = source + ": " + text
			f.line = atoi(strings.TrimPrefix(source, path+":"))
		}
		d.faults = append(d.faults, f)
	}
	slices.SortStableFunc(d.faults, func(a, b fault) int { return a.line - b.line })
	errs := make([]error, len(d.faults))
	for i, f := range d.faults {
		errs[i] = errors.New(f.text)
	}
	return cfg, errors.Join(errs...)
}

// Duration is a time.Duration that is written with a unit: "10s", "500ms".
type Duration time.Duration

// D returns the value as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// UnmarshalText parses a duration such as "10s". A number without a unit is refused,
// except 0.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("invalid duration %q: use a number with a unit, e.g. 500ms, 10s, 2m", text)
	}
	*d = Duration(v)
	return nil
}
