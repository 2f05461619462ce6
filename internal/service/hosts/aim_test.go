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

// looked returns the hosts a:1, b:1 and so on after a look at each.
func looked(t *testing.T, found ...finding) *upstream.Servers {
	t.Helper()
	probes := map[string]finding{}
	var all []upstream.Host
	for i, f := range found {
		h := upstream.Host{Address: string(rune('a'+i)) + ":1"}
		probes[h.Address], all = f, append(all, h)
	}
	servers, err := upstream.Several(upstream.Config{Hosts: all, Probe: func(h upstream.Host) upstream.Probe { return probes[h.Address] }})
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
		"a former primary":               {first, newer, "", "warning: a:1 is a former primary that still accepts writes (timeline 1, but 2 was seen at b:1): stop it and make it a standby. The command acts at b:1 only: whoever leads at a:1 continues\nhost b:1 is the primary\n", "host b:1 is the primary\n"},
		"two primaries":                  {first, second, "", "nothing changed: a:1 would be the host to act at, but b:1 accepts writes too", "warning: b:1 accepts writes too, on the same timeline as a:1: stop one of them\nhost a:1 is the one that is read: it comes first in upstream.address\n"},
		"two primaries, and --at":        {first, second, "a:1", "warning: b:1 accepts writes too, on the same timeline as a:1: stop one of them. The command acts at a:1 only: whoever leads at b:1 continues\n" + acts, "warning: b:1 accepts writes too, on the same timeline as a:1: stop one of them\n" + acts},
		"two primaries, --at the other":  {first, second, "b:1", "--at is b:1, but a:1 and b:1 accept writes, and b:1 accepts writes too", "--at is b:1, but a:1 and b:1 accept writes"},
		"two systems":                    {foreign, first, "", "nothing changed: a:1 would be the host to act at, but b:1 belongs to another database system (7) than the primary in use (8)", "warning: b:1 belongs to another database system (7) than the primary in use (8): remove the wrong one from upstream.address, or restart Fencepost if all hosts have been replaced\n" + acts},
		"a standby that knows a newer":   {first, knowing, "a:1", "none of the 2 hosts is the primary", "none of the 2 hosts is the primary"},
		"one server under two names":     {first, first, "", acts, acts},
	} {
		servers := looked(t, c.a, c.b)
		for reads, want := range map[bool]string{false: c.change, true: c.reads} {
			var out strings.Builder
			_, err := Aim{At: c.at, Reads: reads, Notes: &out, Warnings: &out}.take(t.Context(), servers)
			if err == nil && out.String() != want || err != nil && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s, reads %t: said %q, error %v, want %q", name, reads, out.String(), err, want)
			}
		}
	}
}

// TestAllReasonsAreNamed: of three hosts, one is silent and two accept writes.
func TestAllReasonsAreNamed(t *testing.T) {
	t.Parallel()
	servers := looked(t, silent, first, second)
	for at, want := range map[string]string{
		"": "nothing changed: b:1 would be the host to act at, but a:1 cannot be looked at: no answer; c:1 accepts writes too, on the same timeline as b:1: stop one of them; " +
			"so that each of these may be the primary. If b:1 is the primary, run the command again with --at b:1; if c:1 is, with --at c:1",
		"a:1": "--at is a:1, but b:1 and c:1 accept writes, and a:1 cannot be looked at: no answer",
	} {
		var out strings.Builder
		if _, err := (Aim{At: at, Notes: &out, Warnings: &out}).take(t.Context(), servers); err == nil || err.Error() != want || out.Len() > 0 {
			t.Errorf("--at %q: said %q, error %v, want %q", at, out.String(), err, want)
		}
	}
	primary, err := servers.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := "the command has had its effect at host b:1, but a:1 cannot be looked at: no answer; c:1 accepts writes too, on the same timeline as b:1: stop one of them; so that each of these may be the primary now. "
	if err := (Aim{}).confirm(t.Context(), servers, primary, nil); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("afterwards: %v, want %q", err, want)
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
		aim := Aim{At: c.at, Notes: io.Discard, Warnings: io.Discard}
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
