package upstream

import (
	"errors"
	"fmt"
	"testing"
)

func primaryOf(timeline uint32) *Finding { return &Finding{System: "7", Timeline: timeline} }

var (
	standby = &Finding{System: "7", Standby: true, ReadOnly: true}
	silent  = &Finding{Err: errors.New("no answer")}
)

func readOnly(timeline uint32) *Finding {
	return &Finding{System: "7", Timeline: timeline, ReadOnly: true}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	elsewhere := &Finding{System: "8", Timeline: 9}
	for name, c := range map[string]struct {
		current int
		past    history
		found   []*Finding
		want    int
	}{
		"the standby comes first in the list":       {none, history{}, []*Finding{standby, primaryOf(1)}, 1},
		"not everybody was looked at":               {none, history{}, []*Finding{nil, primaryOf(1)}, none},
		"somebody does not answer":                  {none, history{}, []*Finding{silent, primaryOf(1)}, 1},
		"standbys alone":                            {none, history{}, []*Finding{standby, standby}, none},
		"nobody answers":                            {1, history{"7", 1}, []*Finding{silent, silent}, none},
		"the newer one at the start":                {none, history{}, []*Finding{primaryOf(1), primaryOf(2)}, 1},
		"a promoted standby, the old one answers":   {0, history{"7", 1}, []*Finding{primaryOf(1), primaryOf(2)}, 1},
		"a promoted standby, the old one is silent": {0, history{"7", 1}, []*Finding{silent, primaryOf(2)}, 1},
		"an old primary, the new one is silent":     {1, history{"7", 2}, []*Finding{primaryOf(1), silent}, none},
		"two of one timeline: the current":          {1, history{"7", 2}, []*Finding{primaryOf(2), primaryOf(2)}, 1},
		"two of one timeline at the start":          {none, history{}, []*Finding{primaryOf(2), primaryOf(2)}, 0},
		"another system, the primary is silent":     {0, history{"7", 1}, []*Finding{silent, elsewhere}, none},
		"another system with a newer timeline":      {0, history{"7", 1}, []*Finding{primaryOf(1), elsewhere}, 0},
		"two systems at the start":                  {none, history{}, []*Finding{primaryOf(1), elsewhere}, 0},
		"read-only":                                 {0, history{"7", 1}, []*Finding{readOnly(1), standby}, none},
		"a newer one that is read-only":             {0, history{"7", 1}, []*Finding{primaryOf(1), readOnly(2)}, none},
		"read-only, and another one is not":         {0, history{"7", 2}, []*Finding{readOnly(2), primaryOf(2)}, 1},
		"the current one answers again":             {1, history{"7", 1}, []*Finding{standby, primaryOf(1)}, 1},
	} {
		if got := choose(c.current, c.past, c.found); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestAHostIsDescribed(t *testing.T) {
	t.Parallel()
	past := history{"7", 2}
	for _, c := range []struct {
		found  *Finding
		chosen bool
		want   State
	}{
		{nil, true, Unknown}, {silent, true, Unreachable}, {&Finding{System: "8", Standby: true}, false, OtherSystem}, {standby, false, Standby},
		{primaryOf(1), false, FormerPrimary}, {primaryOf(2), false, SecondPrimary}, {readOnly(2), true, ReadOnly}, {primaryOf(2), true, IsPrimary},
	} {
		if got, text := describe(c.found, past, c.chosen); got != c.want || text == "" {
			t.Errorf("%s is %s (%q), want %s", fmt.Sprint(c.found), got, text, c.want)
		}
	}
}
