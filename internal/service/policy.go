package service

import (
	"cmp"
	"fmt"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/routes"
	"github.com/fencepost/fencepost/proxy"
)

// policy is what the configuration decides for the packages that do not know it.
type policy struct{ current func() *config.Config }

// session decides everything about a session that depends on its user, its database or its
// resource.
func (p policy) session(r fencing.JoinRequest) proxy.SessionPolicy {
	cfg := p.current()
	route, identity, refusal := routed(cfg, r)
	if route.Name != "" {
		r.Resource = route.Resource
	}
	return proxy.SessionPolicy{
		Unfenced:              unfencedModes[cfg.UnfencedFor(r.User)],
		Identity:              identities[identity],
		NameWorker:            cfg.Upstream.ApplicationName == "worker",
		AnnouncePerConnection: cfg.Resources[r.Resource].AnnouncePerConnection(),
		Route:                 route,
		Refusal:               refusal,
		Shadow:                cfg.Resources[r.Resource].EnforceMode() == "shadow",
		Fence:                 fenceModes[cfg.Resources[r.Resource].FenceMode()],
		OnStale:               staleModes[cfg.Resources[r.Resource].StaleMode()],
	}
}

// routed returns the route of a connection that names no resource, the zero Route if there is
// none. identity is who the worker is if neither the client nor the route names it.
func routed(cfg *config.Config, r fencing.JoinRequest) (route proxy.Route, identity string, _ *fencing.Refusal) {
	identity = cfg.Worker.Identity
	if r.Resource != "" {
		return proxy.Route{}, identity, nil
	}
	connection := routes.Connection{User: r.User, Database: r.Database, ApplicationName: r.ApplicationName, Client: r.Client}
	list := cfg.Routes.List()
	i := routes.First(list, connection)
	if i < 0 {
		return proxy.Route{}, identity, nil
	}
	route = proxy.Route{Name: routes.Name(i), Resource: list[i].Resource, Campaign: campaigns[list[i].Campaign]}
	if r.Worker != "" {
		return route, identity, nil
	}
	id, by, err := list[i].WorkerOf(connection)
	if err != nil {
		return route, identity, &fencing.Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf("%s in Fencepost's configuration cannot name the worker: %s", route.Name, fencing.ASCII(err.Error())),
			Hint:     "Set application_name to a name that differs for each process, such as the program's name with host and pid, or set fencepost.worker. " + fencing.NameRule,
		}
	}
	route.Worker = id
	return route, cmp.Or(by, identity), nil
}

// campaigns are the words of a route's campaign.
var campaigns = map[string]fencing.CampaignMode{"on": fencing.CampaignOn, "wait": fencing.CampaignWait, "off": fencing.CampaignOff}

// election decides the same about a resource, for all its sessions.
func (p policy) election(_, resource string) election.Settings {
	cfg := p.current()
	r, configured := cfg.Resources[resource]
	l := cfg.LeaseFor(r)
	return election.Settings{
		TTL: l.TTL.D(), WorkerTimeout: l.WorkerTimeout.D(), MaxWorkerTimeout: l.MaxWorkerTimeout.D(),
		MaxTimeoutFactor: l.MaxTimeoutFactor, Linger: l.Linger.D(), Users: r.Users, Configured: configured,
		Tokens: r.Tokens(), MaxJump: int64(r.MaxJump),
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

var fenceModes = map[string]proxy.FenceMode{
	"session": proxy.FenceSession,
	"tables":  proxy.FenceTables,
}

var unfencedModes = map[string]proxy.UnfencedMode{
	"allow":     proxy.UnfencedAllow,
	"read-only": proxy.UnfencedReadOnly,
	"refuse":    proxy.UnfencedRefuse,
}
