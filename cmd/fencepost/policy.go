package main

import (
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy"
)

// sessionPolicy decides everything about a session that depends on its user, its database
// or its resource.
func (c *Config) sessionPolicy(r fencing.JoinRequest) proxy.SessionPolicy {
	unfenced, ok := c.Unfenced.Users[r.User]
	if !ok {
		unfenced = c.Unfenced.Default
	}
	return proxy.SessionPolicy{
		Unfenced:    unfencedModes[unfenced],
		Identity:    identities[c.Worker.Identity],
		ProvenReads: c.Resources[r.Resource].reads() == "proven",
	}
}

// electionSettings decides the same about a resource, for all its sessions.
func (c *Config) electionSettings(_, resource string) election.Settings {
	r := c.Resources[resource]
	l := c.leaseFor(r)
	return election.Settings{
		TTL: l.TTL.D(), WorkerTimeout: l.WorkerTimeout.D(), MaxWorkerTimeout: l.MaxWorkerTimeout.D(), Linger: l.Linger.D(),
		Users: r.Users,
	}
}

var identities = map[string]proxy.Identity{
	"connection":     proxy.IdentityConnection,
	"client_address": proxy.IdentityClientAddress,
	"proxy":          proxy.IdentityProxy,
}

var unfencedModes = map[string]proxy.UnfencedMode{
	"allow":     proxy.UnfencedAllow,
	"read-only": proxy.UnfencedReadOnly,
	"refuse":    proxy.UnfencedRefuse,
}
