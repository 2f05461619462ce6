package config

import (
	"slices"
	"testing"
	"time"
)

func TestReloadAppliesWhatItCan(t *testing.T) {
	t.Parallel()
	long := Duration(time.Minute)
	old, next := Default(), Default()
	old.Control.Password, next.Control.Password = "before", "after"
	next.Election.Consul.Token = "new"
	next.Listen, next.Lease.Grace, next.Lease.TTL = Addresses{"127.0.0.1:1"}, long, long
	next.Log.Level, next.Limits.MaxConnections = "debug", 7
	old.Unfenced.Users, next.Unfenced.Users = map[string]string{"a": "allow", "b": "allow"}, map[string]string{"b": "allow", "c": "refuse"}
	old.Resources = map[string]Resource{"gone": {}, "billing": {Users: []string{"x"}, Announce: "per-connection"}}
	next.Resources = map[string]Resource{"billing": {Users: []string{"x", "y"}, TTL: &long}, "mail.out": {}}
	reloaded, changes := old.Reload(&next)
	want := []Change{
		{"listen", "127.0.0.1:6432", "127.0.0.1:1", false, ""},
		{"control.password", "******", "******", false, ""},
		{"election.consul.token", "", "******", false, ""},
		{"lease.ttl", "10s", "1m0s", true, ""},
		{"lease.grace", "2s", "1m0s", false, ""},
		{"unfenced.users.a", "allow", "", true, ""},
		{"unfenced.users.c", "", "refuse", true, ""},
		{"resources.billing.ttl", "", "1m0s", true, ""},
		{"resources.billing.announce", "per-connection", "", true, ""},
		{"resources.billing.users", `["x"]`, `["x" "y"]`, true, ""},
		{"resources.gone", "listed", "not listed", true, ""},
		{"resources.mail.out", "not listed", "listed", true, ""},
		{"limits.max_connections", "1000", "7", true, ""},
		{"log.level", "info", "debug", true, ""},
	}
	if !slices.Equal(changes, want) {
		t.Errorf("got\n%+v\nwant\n%+v", changes, want)
	}
	if !slices.Equal(reloaded.Listen, old.Listen) || reloaded.Control.Password != "before" || reloaded.Lease.Grace != old.Lease.Grace {
		t.Errorf("a setting that needs a restart was applied: %+v", reloaded)
	}
	if reloaded.Lease.TTL != long || reloaded.Log.Level != "debug" || reloaded.Resources["billing"].TTL != &long {
		t.Errorf("a setting that can be applied was not: %+v", reloaded)
	}
	if next.Listen.String() != "127.0.0.1:1" {
		t.Error("the new configuration was changed")
	}
	if _, again := reloaded.Reload(&next); len(again) != 4 {
		t.Errorf("the second time, %+v differ, want the four that need a restart", again)
	}
	if _, none := reloaded.Reload(reloaded); len(none) != 0 {
		t.Errorf("a configuration differs from itself: %+v", none)
	}
}
