package service

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/proxy"
)

func TestSessionPolicyFollowsUserAndResource(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	p := policy{func() *config.Config { return &cfg }}
	if got := p.session(fencing.JoinRequest{Database: "shop", User: "app"}); got != (proxy.SessionPolicy{}) {
		t.Errorf("by default: %+v", got)
	}
	cfg.Unfenced = config.Unfenced{Default: "refuse", Users: map[string]string{"migrator": "allow"}}
	cfg.Worker.Identity = "client_address"
	cfg.Upstream.ApplicationName = "worker"
	cfg.Resources = map[string]config.Resource{"billing": {Announce: "per-connection"}, "mail": {}, "news": {OnStale: "discard"}, "new": {Enforce: "shadow"}, "queue": {Fence: "tables"}}
	cfg.Routes = config.Routes{{Match: config.Match{User: "batch"}, Resource: "billing", Worker: "night"}}
	for _, c := range []struct {
		request fencing.JoinRequest
		want    proxy.SessionPolicy
	}{
		{fencing.JoinRequest{User: "app"}, proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true}},
		{fencing.JoinRequest{User: "migrator"}, proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow, Identity: proxy.IdentityClientAddress, NameWorker: true}},
		{fencing.JoinRequest{User: "app", Resource: "mail"}, proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true}},
		{fencing.JoinRequest{User: "app", Resource: "news"},
			proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true, OnStale: proxy.DiscardStale}},
		{fencing.JoinRequest{User: "app", Resource: "queue"},
			proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true, Fence: proxy.FenceTables}},
		{fencing.JoinRequest{User: "app", Resource: "new"},
			proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true, Shadow: true}},
		{fencing.JoinRequest{User: "app", Resource: "billing"},
			proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true, AnnouncePerConnection: true}},
		{fencing.JoinRequest{User: "batch"}, // its resource is that of the route
			proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, NameWorker: true, AnnouncePerConnection: true,
				Route: proxy.Route{Name: "routes.1", Resource: "billing", Worker: "night"}}},
	} {
		if got := p.session(c.request); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.request, got, c.want)
		}
	}
}
