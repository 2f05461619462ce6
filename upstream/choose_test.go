package upstream

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

func primaryOf(timeline uint32) *Finding { return &Finding{System: "7", Timeline: timeline} }

var (
	standby = &Finding{System: "7", Standby: true, ReadOnly: true}
	silent  = &Finding{Err: errors.New("no answer")}
)

func readOnly(timeline uint32) *Finding {
	return &Finding{System: "7", Timeline: timeline, ReadOnly: true}
}

// following is a standby that has a timeline.
func following(timeline uint32) *Finding {
	return &Finding{System: "7", Timeline: timeline, Standby: true, ReadOnly: true}
}

// at is a primary of system 7 at a certain server.
func at(server string, timeline uint32) *Finding {
	return &Finding{System: "7", Timeline: timeline, Server: server}
}

// known is a history in which a host owns a timeline of system 7.
func known(timeline uint32, owner int) *history {
	h := newHistory()
	h.system = "7"
	h.lines["7"] = &line{timeline: timeline, owner: owner, seen: max(owner, 0), rivals: map[int]bool{}}
	return h
}

func TestChoose(t *testing.T) {
	t.Parallel()
	elsewhere := &Finding{System: "8", Timeline: 9}
	for name, c := range map[string]struct {
		current int
		past    *history
		found   []*Finding
		want    int
	}{
		"the standby comes first in the list":       {none, newHistory(), []*Finding{standby, primaryOf(1)}, 1},
		"not everybody was looked at":               {none, newHistory(), []*Finding{nil, primaryOf(1)}, none},
		"somebody does not answer":                  {none, newHistory(), []*Finding{silent, primaryOf(1)}, 1},
		"standbys alone":                            {none, newHistory(), []*Finding{standby, standby}, none},
		"nobody answers":                            {1, known(1, 1), []*Finding{silent, silent}, none},
		"the newer one at the start":                {none, newHistory(), []*Finding{primaryOf(1), primaryOf(2)}, 1},
		"a standby knows a newer one at the start":  {none, newHistory(), []*Finding{primaryOf(1), silent, following(2)}, none},
		"a standby of another system is newer":      {none, newHistory(), []*Finding{primaryOf(1), {System: "8", Timeline: 9, Standby: true}}, 0},
		"a standby knows a newer one":               {0, known(1, 0), []*Finding{primaryOf(1), following(2)}, none},
		"a standby knows the newest one":            {0, known(1, 0), []*Finding{primaryOf(1), primaryOf(2), following(2)}, 1},
		"a promoted standby, the old one answers":   {0, known(1, 0), []*Finding{primaryOf(1), primaryOf(2)}, 1},
		"a promoted standby, the old one is silent": {0, known(1, 0), []*Finding{silent, primaryOf(2)}, 1},
		"an old primary, the new one is silent":     {1, known(2, 1), []*Finding{primaryOf(1), silent}, none},
		"two of one timeline: the owner":            {1, known(2, 1), []*Finding{primaryOf(2), primaryOf(2)}, 1},
		"two of one timeline at the start":          {none, newHistory(), []*Finding{primaryOf(2), primaryOf(2)}, 0},
		"another system, the primary is silent":     {0, known(1, 0), []*Finding{silent, elsewhere}, none},
		"another system with a newer timeline":      {0, known(1, 0), []*Finding{primaryOf(1), elsewhere}, 0},
		"two systems at the start":                  {none, newHistory(), []*Finding{primaryOf(1), elsewhere}, 0},
		"read-only":                                 {0, known(1, 0), []*Finding{readOnly(1), standby}, none},
		"a newer one that is read-only":             {0, known(1, 0), []*Finding{primaryOf(1), readOnly(2)}, none},
		"read-only, and another one writes":         {0, known(2, 0), []*Finding{readOnly(2), primaryOf(2)}, none},
		"read-only at the start":                    {none, newHistory(), []*Finding{readOnly(2), primaryOf(2)}, 1},
		"the current one answers again":             {1, known(1, 1), []*Finding{standby, primaryOf(1)}, 1},
		"one server under two names":                {1, known(1, 1), []*Finding{at("x", 1), at("x", 1)}, 1},
		"the owner has another name":                {1, known(1, 1), []*Finding{at("x", 1), silent}, 0},
	} {
		c.past.learn(c.found)
		if got := choose(c.current, c.past, c.found); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// seen is one finding at a host.
type seen struct {
	host int
	*Finding
}

// TestWhoOwnsATimeline: two servers that write in timelines of one number may have different
// histories.
func TestWhoOwnsATimeline(t *testing.T) {
	t.Parallel()
	failover := []seen{{0, primaryOf(1)}, {1, standby}, {2, standby}, {0, silent}, {1, primaryOf(2)}} // 1 is the primary
	fresh := []seen{{0, silent}, {1, at("y", 2)}, {2, silent}}                                        // 1 is the primary
	split := append(failover[:5:5], seen{2, primaryOf(2)})
	for name, c := range map[string]struct {
		begin, then []seen
		want        int
	}{
		"a standby promoted beside the primary":          {failover, []seen{{2, primaryOf(2)}, {1, silent}}, none},
		"one promoted while the primary is silent":       {failover, []seen{{1, silent}, {2, primaryOf(2)}}, none},
		"one that was silent before it was promoted":     {failover, []seen{{2, silent}, {1, silent}, {2, primaryOf(2)}}, none},
		"one promoted onto a newer timeline":             {failover, []seen{{1, silent}, {2, primaryOf(3)}}, 2},
		"the primary is back":                            {split, []seen{{1, silent}, {1, primaryOf(2)}}, 1},
		"the primary restarts":                           {fresh, []seen{{1, silent}, {1, at("z", 2)}}, 1},
		"the primary has become a standby of the other":  {split, []seen{{1, following(2)}}, 2},
		"a standby had the timeline before its primary":  {failover[:4], []seen{{2, following(2)}, {1, primaryOf(2)}}, 1},
		"the primary starts at another host":             {fresh, []seen{{1, silent}, {2, at("z", 2)}}, 2},
		"it does, and is found before the other is lost": {fresh, []seen{{2, at("z", 2)}, {1, silent}}, 2},
		"two that write, without a past":                 {fresh, []seen{{2, at("z", 2)}, {1, at("y", 2)}, {1, silent}}, none},
		"the primary gets the name of a standby":         {fresh, []seen{{2, standby}, {1, silent}, {2, at("y", 2)}}, 2},
		"the primary gets the name of a rival":           {fresh, []seen{{2, standby}, {2, at("z", 2)}, {1, silent}, {2, at("y", 2)}}, 2},
		"one beside a primary that is read-only":         {fresh, []seen{{1, readOnly(2)}, {2, at("z", 2)}}, none},
		"a newer one that was read-only":                 {failover[:4], []seen{{0, primaryOf(1)}, {1, readOnly(2)}, {1, silent}}, none},
		"a standby that is read-only at first":           {failover, []seen{{1, silent}, {2, readOnly(2)}, {2, primaryOf(2)}}, none},
		"a standby that was read-only beside it":         {failover, []seen{{2, readOnly(2)}, {1, silent}, {2, primaryOf(2)}}, none},
		"a standby that was promoted to an older one":    {failover, []seen{{1, silent}, {2, primaryOf(1)}, {2, primaryOf(2)}}, none},
		"a standby, then another system":                 {failover, []seen{{1, silent}, {2, &Finding{System: "8", Timeline: 1}}, {2, primaryOf(2)}}, none},
		"the primary was a standby in between":           {failover, []seen{{1, following(2)}, {1, primaryOf(2)}, {2, primaryOf(2)}, {1, silent}}, none},
		"a standby that knew a newer one is silent":      {failover[:4], []seen{{2, following(2)}, {2, silent}, {0, primaryOf(1)}}, none},
	} {
		s, err := Several(Config{Hosts: []Host{{Address: "a:1"}, {Address: "b:2"}, {Address: "c:3"}}, Probe: func(Host) Probe { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		for n, step := range append(c.begin[:len(c.begin):len(c.begin)], c.then...) {
			f := *step.Finding
			f.began, f.ended = time.Unix(int64(2*n), 0), time.Unix(int64(2*n+1), 0)
			s.record(step.host, f)
		}
		got := none
		if p, err := s.Primary(t.Context()); err == nil {
			got = slices.Index(s.Addresses(), p.Address)
		}
		if got != c.want {
			t.Errorf("%s: the primary is %d, want %d: %v", name, got, c.want, s.Statuses())
		}
	}
}

func TestAHostIsDescribed(t *testing.T) {
	t.Parallel()
	const chosen, other = 0, 1
	for _, c := range []struct {
		found *Finding
		host  int
		want  State
	}{
		{nil, chosen, Unknown}, {silent, chosen, Unreachable}, {&Finding{System: "8", Standby: true}, other, OtherSystem}, {standby, other, Standby},
		{primaryOf(1), other, FormerPrimary}, {primaryOf(2), other, SecondPrimary}, {readOnly(2), chosen, ReadOnly}, {primaryOf(2), chosen, IsPrimary},
		{at("x", 2), other, SameServer}, {at("y", 2), other, SecondPrimary},
	} {
		for _, serving := range []bool{true, false} {
			p := picture{hosts: []Host{{Address: "a:1"}, {Address: "b:2"}}, found: []*Finding{at("x", 2), at("x", 2)}, past: known(2, chosen), chosen: chosen, serving: serving}
			p.found[c.host] = c.found
			if got, text := p.describe(c.host); got != c.want || text == "" {
				t.Errorf("%s is %s (%q), want %s", fmt.Sprint(c.found), got, text, c.want)
			}
		}
	}
}
