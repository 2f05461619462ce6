package service

import (
	"net/netip"
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
	} {
		if got := p.session(c.request); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.request, got, c.want)
		}
	}
}

func TestRoutesDecideWhatAConnectionLeavesOpen(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Worker.Identity = "proxy"
	cfg.Resources = map[string]config.Resource{"billing": {Announce: "per-connection"}}
	cfg.Routes = config.Routes{
		{Match: config.Match{ApplicationName: "invoicer-*"}, Resource: "billing", Worker: "application_name", Campaign: "wait"},
		{Match: config.Match{Database: "mail"}, Resource: "mail", Worker: "client_address", Campaign: "off"},
		{Match: config.Match{User: "batch"}, Resource: "batch", Worker: "night"},
		{Match: config.Match{User: "plain"}, Resource: "plain"},
	}
	p := policy{func() *config.Config { return &cfg }}
	local := netip.MustParseAddr("10.0.0.1")
	for _, c := range []struct {
		request  fencing.JoinRequest
		route    proxy.Route
		identity proxy.Identity
		tells    bool
	}{
		{fencing.JoinRequest{ApplicationName: "invoicer-7"}, proxy.Route{Name: "routes.1", Resource: "billing", Worker: "invoicer-7", Campaign: fencing.CampaignWait}, proxy.IdentityProxy, true},
		{fencing.JoinRequest{ApplicationName: "invoicer-", Worker: "w"}, proxy.Route{Name: "routes.1", Resource: "billing", Campaign: fencing.CampaignWait}, proxy.IdentityProxy, true},
		{fencing.JoinRequest{Database: "mail", Client: local}, proxy.Route{Name: "routes.2", Resource: "mail", Campaign: fencing.CampaignOff}, proxy.IdentityClientAddress, false},
		{fencing.JoinRequest{User: "batch"}, proxy.Route{Name: "routes.3", Resource: "batch", Worker: "night"}, proxy.IdentityProxy, false},
		{fencing.JoinRequest{User: "plain"}, proxy.Route{Name: "routes.4", Resource: "plain"}, proxy.IdentityProxy, false},
		{fencing.JoinRequest{User: "plain", Resource: "billing"}, proxy.Route{}, proxy.IdentityProxy, true},
		{fencing.JoinRequest{User: "other"}, proxy.Route{}, proxy.IdentityProxy, false},
	} {
		got := p.session(c.request)
		if got.Route != c.route || got.Identity != c.identity || got.AnnouncePerConnection != c.tells || got.Refusal != nil {
			t.Errorf("%+v: %+v, want %+v, identity %d, tells each %t", c.request, got, c.route, c.identity, c.tells)
		}
	}
	if got := p.session(fencing.JoinRequest{ApplicationName: "invoicer-"}).Refusal; got == nil || got.SQLState != "22023" || got.Hint == "" {
		t.Errorf("a name that is the same for all: %+v", got)
	}
}
