package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// Limits of lease times. With a shorter TTL, a renewal's round trip would take a large
// part of it. Consul refuses a TTL outside 10s to 24h unless its session_ttl_min says
// otherwise; etcd raises one below 2s, raft one below 3s, and ZooKeeper one below two of its
// ticks.
const (
	leastTTL = 500 * time.Millisecond
	mostTTL  = 24 * time.Hour
)

// Provider is what the configuration must know of an election provider.
type Provider struct {
	Name string // in election.provider
	// Validate reports the faults in the provider's own settings. It is called only if the
	// provider is configured.
	Validate func(c *Config, fault Fault)
}

// Fault reports something that is wrong, and how to fix it.
type Fault func(format string, args ...any)

// Validate returns everything that is wrong, and how to fix it. providers are all that
// election.provider may name.
func (c *Config) Validate(providers []Provider) error {
	var errs []error
	for _, text := range c.validate(providers) {
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}

// validate returns what is wrong. Each text begins with the path of a setting.
func (c *Config) validate(providers []Provider) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	c.validateListen(fault)
	c.Admin.validate(fault)
	c.Console.validate(fault)
	c.TLS.validate(fault)
	c.Upstream.validateAddress(fault)
	checkWord(fault, "upstream.application_name", c.Upstream.ApplicationName, "client", "worker")
	c.Upstream.TLS.validate(fault)
	if c.Control.User == "" {
		fault("control.user is empty: name the role that owns the schema fencepost (fencepost migrate --dsn DSN --control-role ROLE grants its privileges)")
	}
	c.validateProvider(fault, providers)
	c.Lease.validate(fault, "lease")
	for _, name := range slices.Sorted(maps.Keys(c.Resources)) {
		r := c.Resources[name]
		if name == "" {
			fault("resources has an empty name")
		} else if !fencing.ValidName(name) {
			fault("resources.%s has an invalid name of %d bytes: %s", name, len(name), fencing.NameRule)
		}
		where := "resources." + name
		inherited := func(text string) bool { return slices.Contains(faults, strings.ReplaceAll(text, where+".", "lease.")) }
		c.LeaseFor(r).validate(func(format string, args ...any) {
			if text := fmt.Sprintf(format, args...); !inherited(text) {
				faults = append(faults, text)
			}
		}, where)
		r.validateModes(fault, where)
		r.validateElection(fault, where)
		if r.Users != nil && (len(r.Users) == 0 || slices.Contains(r.Users, "")) {
			fault("resources.%s.users is empty or contains an empty role: list the roles that may campaign, or omit it to allow all", name)
		}
	}
	c.validateRoutes(fault)
	if c.StartupWait < Duration(time.Millisecond) {
		fault("startup_wait is %s: use at least 1ms, or the first write of a lone worker races its own election", c.StartupWait)
	}
	if c.StartupTimeout < Duration(time.Millisecond) {
		fault("startup_timeout is %s: use at least 1ms, so that silent clients are closed", c.StartupTimeout)
	}
	if c.ShutdownDelay < 0 {
		fault("shutdown_delay is %s: it must not be negative", c.ShutdownDelay)
	}
	if c.DrainTimeout < 0 {
		fault("drain_timeout is %s: it must not be negative", c.DrainTimeout)
	}
	checkWord(fault, "unfenced.default", c.Unfenced.Default, unfencedWords...)
	for user, word := range c.Unfenced.Users {
		checkWord(fault, "unfenced.users."+user, word, unfencedWords...)
	}
	checkWord(fault, "worker.identity", c.Worker.Identity, "connection", "client_address", "proxy")
	c.Limits.validate(fault)
	checkWord(fault, "unknown_resources", c.UnknownResources, allowUnknown, denyUnknown)
	if c.OnlyKnown() && len(c.Resources) == 0 {
		fault("unknown_resources is deny, but resources is empty: list the resources, e.g. resources: {billing: {}}")
	}
	checkWord(fault, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	checkWord(fault, "log.format", c.Log.Format, "json", "console")
	c.Audit.validate(fault)
	return faults
}

// validateModes checks the words that say how the resource is fenced.
func (r Resource) validateModes(fault Fault, where string) {
	checkWord(fault, where+".announce", r.announce(), "per-worker", "per-connection")
	checkWord(fault, where+".enforce", r.EnforceMode(), "on", "shadow")
	checkWord(fault, where+".on_stale", r.StaleMode(), "reject", "discard")
	checkWord(fault, where+".fence", r.FenceMode(), "session", "tables")
	if r.FenceMode() == "tables" && r.StaleMode() == "discard" {
		fault("%s has fence: tables and on_stale: discard, which contradict each other: a connection under discard would also discard what no guard protects. Remove one of the two", where)
	}
}

var unfencedWords = []string{"allow", "read-only", "refuse"}

// validateProvider checks that the configured provider exists, and its own settings.
func (c *Config) validateProvider(fault Fault, providers []Provider) {
	names := make([]string, len(providers))
	for i, p := range providers {
		names[i] = p.Name
	}
	checkWord(fault, "election.provider", c.Election.Provider, names...)
	for _, p := range providers {
		if p.Name == c.Election.Provider {
			p.Validate(c, fault)
		}
	}
}

func (l Limits) validate(fault Fault) {
	if l.MaxConnections < 1 {
		fault("limits.max_connections is %d: use at least 1", l.MaxConnections)
	}
	if l.MaxResources < 1 {
		fault("limits.max_resources is %d: use at least 1 (to refuse all resources that are not configured, set unknown_resources: deny)", l.MaxResources)
	}
	if l.ResourcesPerUser < 0 {
		fault("limits.resources_per_user is %d: use 0 for no limit, or a positive number", l.ResourcesPerUser)
	}
	if l.ResourcesPerConnection < 0 {
		fault("limits.resources_per_connection is %d: use 0 for no limit, or a positive number", l.ResourcesPerConnection)
	}
	if l.ResourceIdle < Duration(time.Millisecond) {
		fault("limits.resource_idle is %s: use at least 1ms", l.ResourceIdle)
	}
}

func (l Lease) validate(fault Fault, where string) {
	if l.TTL.D() < leastTTL || l.TTL.D() > mostTTL {
		fault("%s.ttl is %s: use a value from %s to %s", where, l.TTL, leastTTL, mostTTL)
	}
	if l.WorkerTimeout < 0 {
		fault("%s.worker_timeout is %s: use 0s for no timeout, or a positive duration", where, l.WorkerTimeout)
	}
	if l.MaxWorkerTimeout < 0 {
		fault("%s.max_worker_timeout is %s: use 0s for no limit, or a positive duration", where, l.MaxWorkerTimeout)
	}
	if l.MaxTimeoutFactor < 1 {
		fault("%s.max_worker_timeout_factor is %d: use 1 to never extend a timeout, or more", where, l.MaxTimeoutFactor)
	}
	if l.MaxWorkerTimeout > 0 && (l.WorkerTimeout == 0 || l.WorkerTimeout > l.MaxWorkerTimeout) {
		fault("%s.worker_timeout is %s, longer than %s.max_worker_timeout (%s): lower the former or raise the latter", where, l.WorkerTimeout, where, l.MaxWorkerTimeout)
	}
	if l.Grace < Duration(time.Millisecond) {
		fault("%s.grace is %s: use at least 1ms (transactions of the old epoch that last longer are ended)", where, l.Grace)
	}
	if l.Linger < 0 {
		fault("%s.linger is %s: use 0s to release the lease at once, or a positive duration", where, l.Linger)
	}
}

// LeaseFor returns the lease configuration of a resource, including its overrides.
func (c *Config) LeaseFor(r Resource) Lease {
	l := c.Lease
	for _, o := range []struct {
		to   *Duration
		from *Duration
	}{{&l.TTL, r.TTL}, {&l.WorkerTimeout, r.WorkerTimeout}, {&l.MaxWorkerTimeout, r.MaxWorkerTimeout}, {&l.Linger, r.Linger}} {
		if o.from != nil {
			*o.to = *o.from
		}
	}
	return l
}

// UnfencedFor returns what connections of a user without a resource may do.
func (c *Config) UnfencedFor(user string) string {
	if word, ok := c.Unfenced.Users[user]; ok {
		return word
	}
	return c.Unfenced.Default
}

// TTLs returns every TTL that leases may have, in order.
func (c *Config) TTLs() []time.Duration {
	ttls := []time.Duration{c.Lease.TTL.D()}
	for _, r := range c.Resources {
		ttls = append(ttls, c.LeaseFor(r).TTL.D())
	}
	slices.Sort(ttls)
	return slices.Compact(ttls)
}

// Tokens reports whether the workers of the resource are elected elsewhere, and bring a token.
func (r Resource) Tokens() bool { return r.Election == "token" }

// validateElection checks that nothing is set that the kind of election does not have.
func (r Resource) validateElection(fault Fault, where string) {
	if r.Election != "" {
		checkWord(fault, where+".election", r.Election, "lease", "token")
	}
	if r.MaxJump < 0 {
		fault("%s.max_jump is %d: use 0 for no limit, or a positive number", where, r.MaxJump)
	}
	if r.MaxJump > 0 && !r.Tokens() {
		fault("%s.max_jump is set, but there are no tokens: set %s.election: token too, or remove it", where, where)
	}
	for _, s := range []struct {
		name string
		set  *Duration
	}{{"ttl", r.TTL}, {"worker_timeout", r.WorkerTimeout}, {"max_worker_timeout", r.MaxWorkerTimeout}, {"linger", r.Linger}} {
		if s.set != nil && r.Tokens() {
			fault("%s.%s is set, but with election: token there is no lease: remove it", where, s.name)
		}
	}
}

// AnnouncePerConnection reports whether a worker that was superseded before is announced its new
// epoch on each of its connections.
func (r Resource) AnnouncePerConnection() bool { return r.announce() == "per-connection" }

// announce returns how the epoch is announced to such a worker; the default is "per-worker".
func (r Resource) announce() string {
	if r.Announce == "" {
		return "per-worker"
	}
	return r.Announce
}

// EnforceMode returns "on", the default, or "shadow".
func (r Resource) EnforceMode() string { return cmp.Or(r.Enforce, "on") }

// FenceMode returns what the writes of workers that do not lead are refused by: "session", the
// default, or "tables".
func (r Resource) FenceMode() string { return cmp.Or(r.Fence, "session") }

// StaleMode returns what becomes of stale writes: "reject", the default, or "discard".
func (r Resource) StaleMode() string {
	if r.OnStale == "" {
		return "reject"
	}
	return r.OnStale
}

func checkAddress(fault Fault, where, address string) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		fault("%s is %q: use host:port, e.g. 127.0.0.1:5432", where, address)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		fault("%s is %q: the port must be a number from 0 to 65535", where, address)
	}
}

func checkWord(fault Fault, where, got string, want ...string) {
	if !slices.Contains(want, got) {
		fault("%s is %q: it must be one of %s", where, got, strings.Join(want, ", "))
	}
}
