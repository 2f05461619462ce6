package hosts

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/upstream"
)

// finding is a probe that always finds the same.
type finding upstream.Finding

func (f finding) Look(context.Context) upstream.Finding { return upstream.Finding(f) }
func (f finding) Close()                                {}

var (
	first   = finding{System: "7", Timeline: 1, Server: "first"}
	second  = finding{System: "7", Timeline: 1, Server: "second"}
	foreign = finding{System: "8", Timeline: 1, Server: "foreign"}
	newer   = finding{System: "7", Timeline: 2}
	standby = finding{System: "7", Timeline: 1, Standby: true}
	knowing = finding{System: "7", Timeline: 2, Standby: true}
	silent  = finding{Err: errors.New("no answer")}
)

// looked returns the hosts a:1 and b:1 after a look at each.
func looked(t *testing.T, a, b finding) *upstream.Servers {
	t.Helper()
	servers, err := upstream.Several(upstream.Config{Hosts: []upstream.Host{{Address: "a:1"}, {Address: "b:1"}}, Probe: func(h upstream.Host) upstream.Probe {
		if h.Address == "a:1" {
			return a
		}
		return b
	}})
	if err != nil {
		t.Fatal(err)
	}
	servers.Look(t.Context())
	return servers
}

// TestWhereACommandActs: the first command changes something, the second does not.
func TestWhereACommandActs(t *testing.T) {
	t.Parallel()
	const acts = "host a:1 is the primary\n"
	for name, c := range map[string]struct {
		a, b          finding
		at            string
		change, reads string // what is said, or the beginning of the error
	}{
		"a standby":                      {first, standby, "", acts, acts},
		"a standby, and --at":            {first, standby, "a:1", acts, acts},
		"a host that is silent":          {first, silent, "", "nothing changed: a:1 would be the host to act at, but b:1 cannot be looked at: no answer", "warning: b:1 cannot be looked at: no answer\n" + acts},
		"one that is silent, and --at":   {first, silent, "a:1", acts, "warning: b:1 cannot be looked at: no answer\n" + acts},
		"--at the silent one":            {first, silent, "b:1", "--at is b:1, but a:1 is the primary, and b:1 cannot be looked at", "--at is b:1"},
		"--at a host that is not listed": {first, standby, "c:1", "--at is c:1, which is not in upstream.address", "--at is c:1"},
		"a former primary":               {first, newer, "", "host b:1 is the primary\n", "host b:1 is the primary\n"},
		"two primaries":                  {first, second, "", "nothing changed: a:1 would be the host to act at, but b:1 accepts writes too", "warning: b:1 accepts writes too, on the same timeline as a:1: stop one of them\n" + acts},
		"two systems":                    {foreign, first, "", "nothing changed: a:1 would be the host to act at, but b:1 belongs to another database system (7) than the primary in use (8)", "warning: b:1 belongs to another database system (7) than the primary in use (8): remove the wrong one from upstream.address, or restart Fencepost if all hosts have been replaced\n" + acts},
		"a standby that knows a newer":   {first, knowing, "a:1", "none of the 2 hosts is the primary", "none of the 2 hosts is the primary"},
		"one server under two names":     {first, first, "", acts, acts},
	} {
		servers := looked(t, c.a, c.b)
		for reads, want := range map[bool]string{false: c.change, true: c.reads} {
			var out strings.Builder
			_, err := Aim{At: c.at, Reads: reads, Notes: &out}.take(t.Context(), servers)
			if err == nil && out.String() != want || err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s, reads %t: said %q, error %v, want %q", name, reads, out.String(), err, want)
			}
		}
	}
}

// TestWhatACommandSaysAfterwards: the hosts are a primary and a standby when the command begins.
func TestWhatACommandSaysAfterwards(t *testing.T) {
	t.Parallel()
	failed := errors.New("the command failed")
	for name, c := range map[string]struct {
		a, b finding // afterwards
		at   string
		did  error
		want string // the beginning of the error; "" for none
	}{
		"nothing has changed":           {first, standby, "", nil, ""},
		"its own error":                 {first, standby, "", failed, "the command failed"},
		"a failover":                    {first, newer, "", nil, "the command was given at host a:1, but a:1 is no longer the primary, b:1 is. What it may have changed there does not count"},
		"a failover, and --at":          {first, newer, "a:1", nil, "the command was given at host a:1, but a:1 is no longer the primary"},
		"a standby knows a newer":       {first, knowing, "", nil, "the command was given at host a:1, but a:1 is no longer the primary, timeline 2 has begun elsewhere"},
		"the primary is silent":         {silent, standby, "", nil, "the command has had its effect at host a:1, but whether that is still the primary is unknown: none of the 2 hosts is the primary"},
		"the standby is silent":         {first, silent, "", nil, "the command has had its effect at host a:1, but b:1 cannot be looked at: no answer, so that one may be the primary now"},
		"the standby is silent, --at":   {first, silent, "a:1", nil, ""},
		"two primaries":                 {first, second, "", nil, "the command has had its effect at host a:1, but b:1 accepts writes too"},
		"it failed, the primary silent": {silent, standby, "", failed, "the command failed. The command was given at host a:1, which cannot be looked at: no answer"},
	} {
		hosts := map[string]*finding{"a:1": new(first), "b:1": new(standby)}
		servers, err := upstream.Several(upstream.Config{Hosts: []upstream.Host{{Address: "a:1"}, {Address: "b:1"}}, Probe: func(h upstream.Host) upstream.Probe {
			return hosts[h.Address]
		}})
		if err != nil {
			t.Fatal(err)
		}
		servers.Look(t.Context())
		aim := Aim{At: c.at, Notes: io.Discard}
		primary, err := aim.take(t.Context(), servers)
		if err != nil {
			t.Fatal(err)
		}
		*hosts["a:1"], *hosts["b:1"] = c.a, c.b
		if c.did != nil {
			servers.Look(t.Context()) // as Run does while a command works
		}
		err = aim.confirm(t.Context(), servers, primary, c.did)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestTheFaultOfHostsWithoutAPrimary says what to do.
func TestTheFaultOfHostsWithoutAPrimary(t *testing.T) {
	t.Parallel()
	for want, servers := range map[string]*upstream.Servers{
		"promote a standby": looked(t, standby, standby),
		"To go back to a:1": looked(t, first, knowing),
	} {
		_, err := servers.Primary(t.Context())
		if f := store.FaultOf(err); !strings.Contains(f.Remedy, want) {
			t.Errorf("the fault of %v is remedied by %q, want %q", err, f.Remedy, want)
		}
	}
}
