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

// Limits of lease times. With a shorter TTL, a renewal's round trip would take a large
// part of it. Consul refuses a TTL outside 10s to 24h unless its session_ttl_min says
// otherwise.
const (
	leastTTL = 500 * time.Millisecond
	mostTTL  = 24 * time.Hour
)

// Validate returns everything that is wrong, and how to fix it.
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
		fault("control.user is empty: name the role that owns the schema fencepost (fencepost migrate --control-role grants its privileges)")
	}
	checkWord(fault, "election.provider", c.Election.Provider, electorNames()...)
	if e, ok := c.elector(); ok {
		e.validate(c, fault)
	}
	c.Lease.validate(fault, "lease")
	for name, r := range c.Resources {
		if name == "" {
			fault("resources has an empty name")
		}
		c.leaseFor(r).validate(fault, "resources."+name)
		checkWord(fault, "resources."+name+".reads", r.reads(), "checked", "proven")
		if r.Users != nil && (len(r.Users) == 0 || slices.Contains(r.Users, "")) {
			fault("resources.%s.users is empty or contains an empty role: list the roles that may campaign, or omit it to allow all", name)
		}
	}
	if c.StartupWait < Duration(time.Millisecond) {
		fault("startup_wait is %s: use at least 1ms, or the first write of a lone worker races its own election", c.StartupWait)
	}
	if c.StartupTimeout < Duration(time.Millisecond) {
		fault("startup_timeout is %s: use at least 1ms, so that silent clients are closed", c.StartupTimeout)
	}
	if c.DrainTimeout < 0 {
		fault("drain_timeout is %s: it must not be negative", c.DrainTimeout)
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

func (l LimitsConfig) validate(fault faultf, configured int) {
	if l.MaxConnections < 1 {
		fault("limits.max_connections is %d: use at least 1", l.MaxConnections)
	}
	if l.MaxResources < 1 {
		fault("limits.max_resources is %d: use at least 1 (to refuse all resources that are not configured, set limits.configured_resources_only)", l.MaxResources)
	}
	if l.ConfiguredResourcesOnly && configured == 0 {
		fault("limits.configured_resources_only is true, but resources is empty: list the resources, e.g. resources: {billing: {}}")
	}
	if l.ResourceIdle < Duration(time.Millisecond) {
		fault("limits.resource_idle is %s: use at least 1ms", l.ResourceIdle)
	}
}

func (l LeaseConfig) validate(fault faultf, where string) {
	if l.TTL.D() < leastTTL || l.TTL.D() > mostTTL {
		fault("%s.ttl is %s: use a value from %s to %s", where, l.TTL, leastTTL, mostTTL)
	}
	if l.WorkerTimeout < 0 {
		fault("%s.worker_timeout is %s: use 0s for no timeout, or a positive duration", where, l.WorkerTimeout)
	}
	if l.MaxWorkerTimeout < 0 {
		fault("%s.max_worker_timeout is %s: use 0s for no limit, or a positive duration", where, l.MaxWorkerTimeout)
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

// leaseFor returns the lease configuration of a resource, including its overrides.
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

// reads returns how reads of a resource are treated; the default is "checked".
func (r ResourceConfig) reads() string {
	if r.Reads == "" {
		return "checked"
	}
	return r.Reads
}

func checkAddress(fault faultf, where, address string) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		fault("%s is %q: use host:port, e.g. 127.0.0.1:5432", where, address)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		fault("%s is %q: the port must be a number from 0 to 65535", where, address)
	}
}

func checkWord(fault faultf, where, got string, want ...string) {
	if !slices.Contains(want, got) {
		fault("%s is %q: it must be one of %s", where, got, strings.Join(want, ", "))
	}
}
