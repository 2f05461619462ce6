package main

import (
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy"
)

func TestSessionPolicyFollowsUserAndResource(t *testing.T) {
	t.Parallel()
	cfg := NewConfig()
	if p := cfg.sessionPolicy(fencing.JoinRequest{Database: "shop", User: "app"}); p != (proxy.SessionPolicy{}) {
		t.Errorf("by default: %+v", p)
	}
	cfg.Unfenced = UnfencedConfig{Default: "refuse", Users: map[string]string{"migrator": "allow"}}
	cfg.Worker.Identity = "client_address"
	cfg.Resources = map[string]ResourceConfig{"billing": {Reads: "proven"}, "mail": {}}
	for _, c := range []struct {
		request fencing.JoinRequest
		want    proxy.SessionPolicy
	}{
		{fencing.JoinRequest{User: "app"}, proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress}},
		{fencing.JoinRequest{User: "migrator"}, proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow, Identity: proxy.IdentityClientAddress}},
		{fencing.JoinRequest{User: "app", Resource: "mail"}, proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress}},
		{fencing.JoinRequest{User: "app", Resource: "billing"},
			proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse, Identity: proxy.IdentityClientAddress, ProvenReads: true}},
	} {
		if got := cfg.sessionPolicy(c.request); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.request, got, c.want)
		}
	}
}
