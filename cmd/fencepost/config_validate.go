package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of lease times. Below the least, a renewal round trip is a good part
// of the TTL; Consul refuses a TTL outside 10s to 24h unless its
// session_ttl_min says otherwise.
const (
	leastTTL = 500 * time.Millisecond
	mostTTL  = 24 * time.Hour
)

// Validate returns everything that is wrong, with what to do about it.
func (c *Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	checkAddress(fault, "listen", c.Listen)
	if c.Admin != "" {
		checkAddress(fault, "admin", c.Admin)
	}
	c.TLS.validate(fault)
	checkAddress(fault, "upstream.address", c.Upstream.Address)
	c.Upstream.TLS.validate(fault)
	if c.Control.User == "" {
		fault("control.user is empty: name the role that owns the schema fencepost (fencepost migrate --control-role creates its rights)")
	}
	checkWord(fault, "election.provider", c.Election.Provider, "postgres", "consul")
	if c.Election.Provider == "consul" {
		c.Election.Consul.validate(fault)
	}
	c.Lease.validate(fault, "lease")
	for name, r := range c.Resources {
		if name == "" {
			fault("resources has an empty name")
		}
		c.leaseFor(r).validate(fault, "resources."+name)
		checkWord(fault, "resources."+name+".reads", r.reads(), "checked", "proven")
		if r.Users != nil && (len(r.Users) == 0 || slices.Contains(r.Users, "")) {
			fault("resources.%s.users holds no role, or an empty one: list the roles that may campaign, or leave it out for all", name)
		}
	}
	if c.StartupWait < Duration(time.Millisecond) {
		fault("startup_wait is %s: give 1ms or more, or a lone worker's first write races its own election", c.StartupWait)
	}
	if c.StartupTimeout < Duration(time.Millisecond) {
		fault("startup_timeout is %s: a client that says nothing must be closed some time, so give 1ms or more", c.StartupTimeout)
	}
	if c.DrainTimeout < 0 {
		fault("drain_timeout is %s: it cannot be negative", c.DrainTimeout)
	}
	checkWord(fault, "unfenced.default", c.Unfenced.Default, unfencedWords...)
	for user, word := range c.Unfenced.Users {
		checkWord(fault, "unfenced.users."+user, word, unfencedWords...)
	}
	checkWord(fault, "worker.identity", c.Worker.Identity, "connection", "client_address", "proxy")
	c.Limits.validate(fault, len(c.Resources))
	checkWord(fault, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	checkWord(fault, "log.format", c.Log.Format, "json", "console")
	return errors.Join(faults...)
}

var unfencedWords = []string{"allow", "read-only", "refuse"}

type faultf func(format string, args ...any)

func (c *ConsulConfig) validate(fault faultf) {
	checkAddress(fault, "election.consul.address", c.Address)
	checkWord(fault, "election.consul.scheme", c.Scheme, "http", "https")
	if c.Prefix == "" || strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") {
		fault("election.consul.prefix is %q: give a key prefix without a slash at its ends, as in fencepost", c.Prefix)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("election.consul.cert_file and key_file belong together: give both or none")
	}
	if c.Scheme == "http" && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		fault("election.consul has TLS settings, but scheme is http: say scheme: https, or leave them out")
	}
}

func (l LimitsConfig) validate(fault faultf, configured int) {
	if l.MaxConnections < 1 {
		fault("limits.max_connections is %d: give at least 1", l.MaxConnections)
	}
	if l.MaxResources < 1 {
		fault("limits.max_resources is %d: give at least 1; limits.configured_resources_only refuses all that are not configured", l.MaxResources)
	}
	if l.ConfiguredResourcesOnly && configured == 0 {
		fault("limits.configured_resources_only is true, but resources is empty: name the resources, as in resources: {billing: {}}")
	}
	if l.ResourceIdle < Duration(time.Millisecond) {
		fault("limits.resource_idle is %s: give 1ms or more", l.ResourceIdle)
	}
}

func (l LeaseConfig) validate(fault faultf, where string) {
	if l.TTL.D() < leastTTL || l.TTL.D() > mostTTL {
		fault("%s.ttl is %s: give %s to %s", where, l.TTL, leastTTL, mostTTL)
	}
	if l.WorkerTimeout < 0 {
		fault("%s.worker_timeout is %s: give 0s for never, or a positive time", where, l.WorkerTimeout)
	}
	if l.MaxWorkerTimeout < 0 {
		fault("%s.max_worker_timeout is %s: give 0s for no bound, or a positive time", where, l.MaxWorkerTimeout)
	}
	if l.MaxWorkerTimeout > 0 && (l.WorkerTimeout == 0 || l.WorkerTimeout > l.MaxWorkerTimeout) {
		fault("%s.worker_timeout is %s, above %s.max_worker_timeout (%s): make one fit the other", where, l.WorkerTimeout, where, l.MaxWorkerTimeout)
	}
	if l.Grace < Duration(time.Millisecond) {
		fault("%s.grace is %s: give 1ms or more; transactions of the old epoch that last longer are ended", where, l.Grace)
	}
	if l.Linger < 0 {
		fault("%s.linger is %s: give 0s to release at once, or a positive time", where, l.Linger)
	}
}

// leaseFor is the lease configuration of a resource with its overrides.
func (c *Config) leaseFor(r ResourceConfig) LeaseConfig {
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

// reads is how reads of a resource are treated: "checked" if nothing is said.
func (r ResourceConfig) reads() string {
	if r.Reads == "" {
		return "checked"
	}
	return r.Reads
}

func checkAddress(fault faultf, where, address string) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		fault("%s is %q: give host:port, as in 127.0.0.1:5432", where, address)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		fault("%s is %q: its port must be a number from 0 to 65535", where, address)
	}
}

func checkWord(fault faultf, where, got string, want ...string) {
	if !slices.Contains(want, got) {
		fault("%s is %q: it must be one of %s", where, got, strings.Join(want, ", "))
	}
}
