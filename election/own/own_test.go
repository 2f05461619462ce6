package own

import (
	"strings"
	"testing"
	"time"
)

func TestAnIncarnationSaysThroughWhichProxyAndForWhomACandidacyRuns(t *testing.T) {
	t.Parallel()
	incarnation := Incarnation("P1", "app", "host-7")
	if again := Incarnation("P1", "app", "host-7"); again == incarnation || strings.Split(again, ".")[2] == strings.Split(incarnation, ".")[2] {
		t.Errorf("two candidacies are %s and %s", incarnation, again)
	}
	plain := Incarnation("", "app", "host-7")
	if of, none, token := Proxy(incarnation), Proxy(plain), Proxy("token:1:7"); of != "P1" || none != "" || token != "" {
		t.Errorf("the candidacies run through %q, %q and %q", of, none, token)
	}
	parts := strings.Split(incarnation, ".")
	for name, c := range map[string]struct {
		incarnation, user, worker string
		own                       bool
	}{
		"the same worker and role":     {incarnation, "app", "host-7", true},
		"another worker":               {incarnation, "app", "host-8", false},
		"another role":                 {incarnation, "mallory", "host-7", false},
		"what is cut elsewhere":        {incarnation, "apph", "ost-7", false},
		"a proxy without presence":     {plain, "app", "host-7", false},
		"a token's candidacy":          {"token:1:7", "app", "host-7", false},
		"none":                         {"", "app", "host-7", false},
		"another random part":          {"X" + incarnation, "app", "host-7", false},
		"more parts":                   {incarnation + ".", "app", "host-7", false},
		"another proxy, which is true": {parts[0] + ".P2." + parts[2], "app", "host-7", true},
	} {
		if presenceID, own := PresenceID(c.incarnation, c.user, c.worker); own != c.own || own && !strings.Contains(c.incarnation, "."+presenceID+".") {
			t.Errorf("%s: %q, %t", name, presenceID, own)
		}
	}
}

// TestAnotherHolderIsLookedAtAgain: how often the same one is looked at is shown by the candidacies.
func TestAnotherHolderIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	now := time.Hour
	var r Reclaim
	for _, holder := range []string{"a", "b"} {
		if r.Follow(holder, now); !r.Pending() || r.Looked() || r.At != now || !r.Waits(now) {
			t.Errorf("at first %s is %+v", holder, r)
		}
		r.Postpone(now)
		now += firstWait
		if r.Follow(holder, now); !r.Looked() || r.Waits(now) {
			t.Errorf("later %s is %+v", holder, r)
		}
	}
	if r.Follow("", now); r.Pending() {
		t.Errorf("no holder is %+v", r)
	}
}
