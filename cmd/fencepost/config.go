package main

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
// with NewConfig.
type Config struct {
	Listen         string                    `yaml:"listen"`
	Admin          string                    `yaml:"admin"`
	Pprof          bool                      `yaml:"pprof"`
	TLS            TLSConfig                 `yaml:"tls"`
	Upstream       UpstreamConfig            `yaml:"upstream"`
	Control        ControlConfig             `yaml:"control"`
	Election       ElectionConfig            `yaml:"election"`
	Lease          LeaseConfig               `yaml:"lease"`
	StartupWait    Duration                  `yaml:"startup_wait"`
	StartupTimeout Duration                  `yaml:"startup_timeout"`
	DrainTimeout   Duration                  `yaml:"drain_timeout"`
	Unfenced       UnfencedConfig            `yaml:"unfenced"`
	Worker         WorkerConfig              `yaml:"worker"`
	Resources      map[string]ResourceConfig `yaml:"resources"`
	Proxy          ProxyConfig               `yaml:"proxy"`
	Limits         LimitsConfig              `yaml:"limits"`
	Log            LogConfig                 `yaml:"log"`
}

// UpstreamConfig is the Postgres that clients are connected to.
type UpstreamConfig struct {
	Address string            `yaml:"address"`
	TLS     UpstreamTLSConfig `yaml:"tls"`
}

// ControlConfig is the role under which Fencepost itself connects to the upstream, in
// each client's own database.
type ControlConfig struct {
	User     string `yaml:"user"`
	Password string `yaml:"password"`
}

// ElectionConfig says which provider awards the leases, and has the settings of each
// provider that has any.
type ElectionConfig struct {
	Provider string       `yaml:"provider"` // the name of an elector
	Consul   ConsulConfig `yaml:"consul"`
}

// LeaseConfig sets the times of leases. Time decides who may try to lead; the check in
// the database decides who may write.
type LeaseConfig struct {
	TTL              Duration `yaml:"ttl"`
	WorkerTimeout    Duration `yaml:"worker_timeout"`
	MaxWorkerTimeout Duration `yaml:"max_worker_timeout"`
	Grace            Duration `yaml:"grace"`
	Linger           Duration `yaml:"linger"`
}

// UnfencedConfig says what connections that name no resource may do.
type UnfencedConfig struct {
	Default string            `yaml:"default"` // "allow", "read-only" or "refuse"
	Users   map[string]string `yaml:"users"`
}

// WorkerConfig says how to identify a connection that names no worker.
type WorkerConfig struct {
	Identity string `yaml:"identity"` // "connection", "client_address" or "proxy"
}

// ResourceConfig overrides settings for one resource. A nil field means the setting in
// lease.
type ResourceConfig struct {
	TTL              *Duration `yaml:"ttl"`
	WorkerTimeout    *Duration `yaml:"worker_timeout"`
	MaxWorkerTimeout *Duration `yaml:"max_worker_timeout"`
	Linger           *Duration `yaml:"linger"`
	Reads            string    `yaml:"reads"` // "checked" or "proven"
	Users            []string  `yaml:"users"` // roles that may campaign; nil means all
}

// ProxyConfig names this proxy in leases and logs.
type ProxyConfig struct {
	ID string `yaml:"id"`
}

// LimitsConfig limits the resources of the proxy that clients can use.
type LimitsConfig struct {
	MaxConnections          int      `yaml:"max_connections"`
	MaxResources            int      `yaml:"max_resources"`
	ConfiguredResourcesOnly bool     `yaml:"configured_resources_only"`
	ResourceIdle            Duration `yaml:"resource_idle"`
}

// LogConfig sets the format of the log on standard error.
type LogConfig struct {
	Level  string `yaml:"level"`  // "debug", "info", "warn" or "error"
	Format string `yaml:"format"` // "json" or "console"
}

// NewConfig returns all defaults.
func NewConfig() Config {
	return Config{
		Listen: "127.0.0.1:6432",
		Admin:  "127.0.0.1:6433",
		TLS:    TLSConfig{Mode: "disable", ClientCert: "optional", MinVersion: "1.2"},
		Upstream: UpstreamConfig{
			Address: "127.0.0.1:5432",
			TLS:     UpstreamTLSConfig{Mode: "disable", MinVersion: "1.2"},
		},
		Control: ControlConfig{User: "fencepost"},
		Election: ElectionConfig{
			Provider: "postgres",
			Consul:   defaultConsul,
		},
		Lease: LeaseConfig{
			TTL:           Duration(10 * time.Second),
			WorkerTimeout: Duration(30 * time.Second),
			Grace:         Duration(2 * time.Second),
			Linger:        0,
		},
		StartupWait:    Duration(2 * time.Second),
		StartupTimeout: Duration(10 * time.Second),
		DrainTimeout:   Duration(10 * time.Second),
		Unfenced:       UnfencedConfig{Default: "read-only"},
		Worker:         WorkerConfig{Identity: "connection"},
		Limits:         LimitsConfig{MaxConnections: 1000, MaxResources: 1000, ResourceIdle: Duration(election.DefaultIdle)},
		Log:            LogConfig{Level: "info", Format: "json"},
	}
}

// LoadConfig reads the file (none if path is empty), applies the environment variables
// that override it, and validates the result. Its errors are usage errors.
func LoadConfig(path string, getenv func(string) string) (Config, error) {
	cfg := NewConfig()
	if path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return cfg, usagef("read the configuration: %v", err)
		}
		if err := cfg.decode(text); err != nil {
			return cfg, usagef("%s: %v", path, err)
		}
	}
	if err := cfg.override(getenv); err != nil {
		return cfg, usageError{err.Error()}
	}
	if err := cfg.Validate(); err != nil {
		return cfg, usageError{err.Error()}
	}
	return cfg, nil
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
func (u *UnfencedConfig) UnmarshalYAML(node *yaml.Node) error {
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
