package doctor

import (
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/config"
)

const (
	// shortTTL leaves a request to the lease service less than a second, because a request
	// may take a third of the TTL.
	shortTTL = 3 * time.Second
	// shortTimeout is less than ordinary pauses of a healthy program.
	shortTimeout = 5 * time.Second
	// stopTimeout is after how long systemd, with the unit of the package, and Kubernetes,
	// by default, kill a process that is asked to end.
	stopTimeout = 30 * time.Second
)

var (
	ttlShort = newKind(Warning, "ttl-short",
		"A request to the lease service may take a third of the TTL. A pause of a second, in the network, the disk or the process, then ends a lease.")
	graceLong = newKind(Warning, "grace-long",
		"A takeover waits that long for a transaction of the old leader. Meanwhile nobody leads, although the lease itself was free earlier.")
	lingerLong = newKind(Warning, "linger-long",
		"A worker that leaves in an orderly way keeps the others out for longer than one that has frozen.")
	timeoutNever = newKind(Warning, "worker-timeout-never",
		"A worker that freezes while its connection stays open keeps the lead for ever.")
	timeoutTooShort = newKind(Warning, "worker-timeout-short",
		"A healthy worker that computes, collects garbage or waits for another service for so long loses its lease.")
	timeoutUnbounded = newKind(Warning, "worker-timeout-unbounded",
		"The resource is restricted to some roles, so not everybody is trusted; but each of them may ask for fencepost.worker_timeout=0, and then keep the lead while frozen.")
	drainNone = newKind(Warning, "drain-none",
		"At SIGTERM, every running transaction is cut at once, also at each deployment.")
	drainLong = newKind(Warning, "drain-long",
		"systemd (TimeoutStopSec of the unit) and Kubernetes (by default) kill a process after 30 s. Fencepost then releases no lease, and the next leader waits for the TTL.")
	unfencedAllowed = newKind(Warning, "unfenced-allow",
		"A connection that names no resource, because of a typo or because a pooler drops startup parameters, writes without a fence, unnoticed.")
)

// settings looks at what is valid in a configuration, and risky.
func (f *findings) settings(c *config.Config) {
	f.lease("lease", c.Lease)
	general := f.list
	for _, name := range slices.Sorted(maps.Keys(c.Resources)) {
		r := c.Resources[name]
		own := findings{where: f.where}
		own.lease("resources."+name, c.LeaseFor(r))
		if len(r.Users) > 0 && !r.Tokens() && c.LeaseFor(r).MaxWorkerTimeout == 0 {
			own.addf(timeoutUnbounded, "Set lease.max_worker_timeout, or that of the resource.", "resources.%s.users is set, and its max_worker_timeout is 0s", name)
		}
		for _, found := range own.list { // what is inherited is said once
			if !slices.ContainsFunc(general, func(g Finding) bool { return g.ID == found.ID }) {
				f.list = append(f.list, found)
			}
		}
	}
	switch drain := c.DrainTimeout.D(); {
	case c.ShutdownDelay > 0 && c.ShutdownDelay.D()+drain >= stopTimeout:
		f.addf(drainLong, "Lower them, or raise TimeoutStopSec or terminationGracePeriodSeconds above their sum.", "shutdown_delay is %s, and drain_timeout %s", c.ShutdownDelay, c.DrainTimeout)
	case drain == 0:
		f.add(drainNone, "drain_timeout is 0s", "Set drain_timeout to what an ordinary transaction takes, such as 10s.")
	case drain >= stopTimeout:
		f.addf(drainLong, "Lower drain_timeout, or raise TimeoutStopSec or terminationGracePeriodSeconds above it.", "drain_timeout is %s", c.DrainTimeout)
	}
	if c.Unfenced.Default == "allow" {
		f.add(unfencedAllowed, "unfenced.default is allow", "Set unfenced.default: read-only or refuse, and allow single users in unfenced.users.")
	}
}

// lease looks at the lease settings at one place of the configuration.
func (f *findings) lease(where string, l config.Lease) {
	if l.TTL.D() < shortTTL {
		f.addf(ttlShort, "Set it to 10s, the default, or at least 3s.", "%s.ttl is %s", where, l.TTL)
	}
	if l.Grace > l.TTL {
		f.addf(graceLong, "Lower lease.grace below the TTL.", "lease.grace is %s, longer than %s.ttl (%s)", l.Grace, where, l.TTL)
	}
	if l.WorkerTimeout > 0 && l.Linger > l.WorkerTimeout {
		f.addf(lingerLong, "Lower it below worker_timeout.", "%s.linger is %s, longer than its worker_timeout (%s)", where, l.Linger, l.WorkerTimeout)
	}
	switch {
	case l.WorkerTimeout == 0:
		f.addf(timeoutNever, "Set it to more than the longest time that a healthy worker computes without a statement.", "%s.worker_timeout is 0s", where)
	case l.WorkerTimeout.D() < shortTimeout:
		f.addf(timeoutTooShort, "Set it to more than the longest time that a healthy worker computes without a statement.", "%s.worker_timeout is %s", where, l.WorkerTimeout)
	}
}
