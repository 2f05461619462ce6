package main

import (
	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy"
)

// policy is what the configuration decides for the packages that do not know it.
type policy struct{ current func() *config.Config }

// session decides everything about a session that depends on its user, its database or its
// resource.
func (p policy) session(r fencing.JoinRequest) proxy.SessionPolicy {
	cfg := p.current()
	unfenced, ok := cfg.Unfenced.Users[r.User]
	if !ok {
		unfenced = cfg.Unfenced.Default
	}
	return proxy.SessionPolicy{
		Unfenced:    unfencedModes[unfenced],
		Identity:    identities[cfg.Worker.Identity],
		ProvenReads: cfg.Resources[r.Resource].ProvenReads(),
		NameWorker:  cfg.Upstream.ApplicationName == "worker",
		TellEach:    cfg.Resources[r.Resource].AnnouncePerConnection(),
		OnStale:     staleModes[cfg.Resources[r.Resource].StaleMode()],
	}
}

// election decides the same about a resource, for all its sessions.
func (p policy) election(_, resource string) election.Settings {
	cfg := p.current()
	r, configured := cfg.Resources[resource]
	l := cfg.LeaseFor(r)
	return election.Settings{
		TTL: l.TTL.D(), WorkerTimeout: l.WorkerTimeout.D(), MaxWorkerTimeout: l.MaxWorkerTimeout.D(),
		MaxTimeoutFactor: l.MaxTimeoutFactor, Linger: l.Linger.D(), Users: r.Users, Configured: configured,
	}
}

var identities = map[string]proxy.Identity{
	"connection":     proxy.IdentityConnection,
	"client_address": proxy.IdentityClientAddress,
	"proxy":          proxy.IdentityProxy,
}

var staleModes = map[string]proxy.OnStale{
	"reject":  proxy.RejectStale,
	"discard": proxy.DiscardStale,
}

var unfencedModes = map[string]proxy.UnfencedMode{
	"allow":     proxy.UnfencedAllow,
	"read-only": proxy.UnfencedReadOnly,
	"refuse":    proxy.UnfencedRefuse,
}
