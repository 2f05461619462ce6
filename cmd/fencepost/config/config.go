// Package config is the configuration of the command: its file, the environment variables
// that override it, the defaults, and the rules that a configuration must follow.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/fencepost/fencepost/election"
)

// Config is the configuration file. docs/configuration.md explains each setting;
// etc/fencepost.yml is an annotated sample. A test compares both with this struct and
// with Default.
type Config struct {
	Listen         string              `yaml:"listen"`
	Admin          string              `yaml:"admin"`
	Pprof          bool                `yaml:"pprof"`
	TLS            TLS                 `yaml:"tls"`
	Upstream       Upstream            `yaml:"upstream"`
	Control        Control             `yaml:"control"`
	Election       Election            `yaml:"election"`
	Lease          Lease               `yaml:"lease"`
	StartupWait    Duration            `yaml:"startup_wait"`
	StartupTimeout Duration            `yaml:"startup_timeout"`
	DrainTimeout   Duration            `yaml:"drain_timeout"`
	Unfenced       Unfenced            `yaml:"unfenced"`
	Worker         Worker              `yaml:"worker"`
	Resources      map[string]Resource `yaml:"resources"`
	Proxy          Proxy               `yaml:"proxy"`
	Limits         Limits              `yaml:"limits"`
	Log            Log                 `yaml:"log"`
}

// Upstream is the Postgres that clients are connected to.
type Upstream struct {
	Address string      `yaml:"address"`
	TLS     UpstreamTLS `yaml:"tls"`
}

// Control is the role under which Fencepost itself connects to the upstream, in
// each client's own database.
type Control struct {
	User     string `yaml:"user"`
	Password string `yaml:"password"`
}

// Election says which provider awards the leases, and has the settings of each
// provider that has any.
type Election struct {
	Provider string `yaml:"provider"` // the name of a Provider
	Consul   Consul `yaml:"consul"`
}

// Lease sets the times of leases. Time decides who may try to lead; the check in
// the database decides who may write.
type Lease struct {
	TTL              Duration `yaml:"ttl"`
	WorkerTimeout    Duration `yaml:"worker_timeout"`
	MaxWorkerTimeout Duration `yaml:"max_worker_timeout"`
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
	Reads            string    `yaml:"reads"` // "checked" or "proven"
	Users            []string  `yaml:"users"` // roles that may campaign; nil means all
}

// Proxy names this proxy in leases and logs.
type Proxy struct {
	ID string `yaml:"id"`
}

// Limits limits the resources of the proxy that clients can use.
type Limits struct {
	MaxConnections          int      `yaml:"max_connections"`
	MaxResources            int      `yaml:"max_resources"`
	ConfiguredResourcesOnly bool     `yaml:"configured_resources_only"`
	ResourceIdle            Duration `yaml:"resource_idle"`
}

// Log sets the format of the log on standard error.
type Log struct {
	Level  string `yaml:"level"`  // "debug", "info", "warn" or "error"
	Format string `yaml:"format"` // "json" or "console"
}

// Default returns all defaults.
func Default() Config {
	return Config{
		Listen: "127.0.0.1:6432",
		Admin:  "127.0.0.1:6433",
		TLS:    TLS{Mode: "disable", ClientCert: "optional", MinVersion: "1.2"},
		Upstream: Upstream{
			Address: "127.0.0.1:5432",
			TLS:     UpstreamTLS{Mode: "disable", MinVersion: "1.2"},
		},
		Control: Control{User: "fencepost"},
		Election: Election{
			Provider: "postgres",
			Consul:   defaultConsul,
		},
		Lease: Lease{
			TTL:           Duration(10 * time.Second),
			WorkerTimeout: Duration(30 * time.Second),
			Grace:         Duration(2 * time.Second),
			Linger:        0,
		},
		StartupWait:    Duration(2 * time.Second),
		StartupTimeout: Duration(10 * time.Second),
		DrainTimeout:   Duration(10 * time.Second),
		Unfenced:       Unfenced{Default: "read-only"},
		Worker:         Worker{Identity: "connection"},
		Limits:         Limits{MaxConnections: 1000, MaxResources: 1000, ResourceIdle: Duration(election.DefaultIdle)},
		Log:            Log{Level: "info", Format: "json"},
	}
}

// Load reads the file (none if path is empty), applies the environment variables that
// override it, and validates the result. Every error is a mistake of the user.
func Load(path string, getenv func(string) string, providers []Provider) (Config, error) {
	cfg := Default()
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return cfg, fmt.Errorf("read the configuration: %w", err)
		}
		if err := cfg.decode(text); err != nil {
			return cfg, fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := cfg.override(getenv); err != nil {
		return cfg, err
	}
	return cfg, cfg.Validate(providers)
}

// decode reads YAML strictly: unknown keys and a second document are errors.
func (c *Config) decode(text []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("decode the configuration: %w", err)
	}
	var more any
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return errors.New("decode the configuration: more than one YAML document")
	}
	return nil
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
		return fmt.Errorf("invalid duration %q: include a unit, e.g. 500ms, 10s, 2m", text)
	}
	*d = Duration(v)
	return nil
}

// UnmarshalYAML accepts a single word for the default ("unfenced: allow"), or a mapping
// with default and users.
func (u *Unfenced) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&u.Default)
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: unfenced must be a word or a mapping with default and users", node.Line)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		var err error
		switch key.Value {
		case "default":
			err = value.Decode(&u.Default)
		case "users":
			err = value.Decode(&u.Users)
		default:
			err = fmt.Errorf("line %d: field %s not found in unfenced", key.Line, key.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
