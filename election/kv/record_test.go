package kv

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
)

func TestWhatARecordMeans(t *testing.T) {
	t.Parallel()
	held := recordOf(bid("a"), "one", time.Now())
	entry := func(r record, life string) Entry { return Entry{Record: r.encode(), Version: 7, Life: life} }
	for name, c := range map[string]struct {
		entry Entry
		want  elector.Observation
	}{
		"nothing":                        {Entry{}, elector.Observation{State: elector.Freed}},
		"what another program wrote":     {Entry{Record: []byte("mine"), Version: 7}, elector.Observation{State: elector.Freed, Index: 7}},
		"held":                           {entry(held, "x"), elector.Observation{State: elector.Held, Incarnation: "a-1", Index: 7}},
		"expired":                        {entry(held, ""), elector.Observation{State: elector.Freed, Incarnation: "a-1", Index: 7, Unconfirmed: time.Minute}},
		"left":                           {entry(held.vacated(elector.ReasonLeft, 0), ""), elector.Observation{State: elector.Freed, Incarnation: "a-1", Index: 7}},
		"released because of silence":    {entry(held.vacated(elector.ReasonUnresponsive, 30*time.Second), ""), elector.Observation{State: elector.Unresponsive, Incarnation: "a-1", Index: 7, Unconfirmed: 30 * time.Second}},
		"left after silence":             {entry(held.vacated(elector.ReasonUnresponsive, 30*time.Second).vacated(elector.ReasonLeft, 0), ""), elector.Observation{State: elector.Freed, Incarnation: "a-1", Index: 7}},
		"silence whose length is absent": {entry(held.vacated(elector.ReasonUnresponsive, 0), ""), elector.Observation{State: elector.Unresponsive, Incarnation: "a-1", Index: 7}},
	} {
		if got := observe(c.entry); got != c.want {
			t.Errorf("%s is seen as %+v, want %+v", name, got, c.want)
		}
	}
}

func TestTwoNamesHaveTwoKeys(t *testing.T) {
	t.Parallel()
	names := [][2]string{{"a/b", "c"}, {"a", "b/c"}, {"a=2Fb", "c"}, {".", "c"}, {"..", "c"}, {"a", ".generation"}, {"ä", "c"}, {"a b", "?c#d"}}
	seen := map[string][2]string{}
	for _, name := range names {
		key := keyOf(name[0], name[1])
		if other, ok := seen[key]; ok {
			t.Errorf("%q and %q have the key %s", name, other, key)
		}
		seen[key] = name
	}
}
