package election

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/offer"
	"github.com/fencepost/fencepost/election/own"
)

// TestWhatACandidacyDoesNext has, for each action, the state that calls for it, and what keeps it from that.
func TestWhatACandidacyDoesNext(t *testing.T) {
	t.Parallel()
	const now = time.Hour
	lease := &elector.Lease{Index: 7}
	given := offer.Offer{Order: 1, Worker: "other", Begins: now - time.Second, Until: now + time.Minute}
	seen := func(o elector.State) func(*state) { return func(s *state) { s.seen.observation.State = o } }
	holds := func(s *state) { s.held = holding{lease: lease, renewAt: now + time.Second, trusted: now + time.Minute} }
	leads := func(s *state) {
		holds(s)
		s.held.granted = true
		s.leadership = leadership{phase: leading, epoch: 3, led: true}
	}
	asks := func(s *state) { s.expectFirst() }
	demands := func(s *state) { s.demanded = append(s.demanded, make(chan struct{})) }
	gone := func(s *state) { s.campaigners = 0 }
	silent := func(s *state) { s.liveness.unresponsive = true }
	asking := func(k request) func(*state) { return func(s *state) { s.requests.begin(k, nil) } }

	for name, c := range map[string]struct {
		is   []func(*state)
		want action
	}{
		"a free lease":                            {is: []func(*state){seen(elector.Freed)}, want: acquire},
		"too soon":                                {is: []func(*state){seen(elector.Freed), func(s *state) { s.tryAt = now + 1 }}},
		"too soon, but someone waits":             {is: []func(*state){seen(elector.Freed), asks, func(s *state) { s.tryAt = now + 1 }}, want: acquire},
		"while a request to acquire is out":       {is: []func(*state){seen(elector.Freed), asks, asking(requestAcquire)}},
		"while a release is":                      {is: []func(*state){seen(elector.Freed), asks, asking(requestRelease)}},
		"a free lease, and the worker is silent":  {is: []func(*state){seen(elector.Freed), silent}},
		"which others wait for":                   {is: []func(*state){seen(elector.Freed), silent, asks}, want: answer},
		"a free lease, barred":                    {is: []func(*state){seen(elector.Freed), func(s *state) { s.barredUntil = now + 1 }}},
		"barred, and someone waits":               {is: []func(*state){seen(elector.Freed), asks, func(s *state) { s.barredUntil = now + 1 }}, want: answer},
		"offered to another worker":               {is: []func(*state){seen(elector.Freed), asks, func(s *state) { s.seen.offer = given }}, want: answer},
		"the database does not answer":            {is: []func(*state){seen(elector.Freed), asks, func(s *state) { s.seen.unreached = true }}, want: answer},
		"held by another proxy":                   {is: []func(*state){seen(elector.Held)}},
		"held, and a first attempt is awaited":    {is: []func(*state){seen(elector.Held), asks}, want: acquire},
		"held, and a write asks":                  {is: []func(*state){seen(elector.Held), demands}, want: answer},
		"held by this proxy":                      {is: []func(*state){seen(elector.Held), asks, func(s *state) { s.seen.taken = true }}, want: answer},
		"about to be released by this proxy":      {is: []func(*state){seen(elector.Held), asks, func(s *state) { s.seen.departing = true }}},
		"held by a lost response":                 {is: []func(*state){seen(elector.Held), func(s *state) { s.seen.observation.Incarnation = "mine" }}, want: acquire},
		"held, as far as was known":               {is: []func(*state){seen(elector.Held), func(s *state) { s.seen.watchFailing = true }}, want: acquire},
		"vacant by silence":                       {is: []func(*state){seen(elector.Unresponsive)}},
		"vacant, and a write asks":                {is: []func(*state){seen(elector.Unresponsive), demands}, want: acquire},
		"vacant, and a worker waits to lead":      {is: []func(*state){seen(elector.Unresponsive), func(s *state) { s.waiters = 1 }}, want: acquire},
		"vacant, and it has led before":           {is: []func(*state){seen(elector.Unresponsive), func(s *state) { s.leadership = leadership{phase: lapsed, epoch: 3} }}, want: acquire},
		"held for this worker elsewhere":          {is: []func(*state){seen(elector.Held), func(s *state) { s.reclaim = own.Reclaim{From: "former", At: now} }}, want: acquire},
		"held for it, looked at a moment ago":     {is: []func(*state){seen(elector.Held), func(s *state) { s.reclaim = own.Reclaim{From: "former", At: now + 1} }}},
		"a token needs no lease to be free":       {is: []func(*state){seen(elector.Held), func(s *state) { s.token = 5 }}, want: acquire},
		"a lease without an epoch":                {is: []func(*state){holds}, want: grant},
		"which is asked for":                      {is: []func(*state){holds, asking(requestGrant)}},
		"which is asked for again later":          {is: []func(*state){holds, func(s *state) { s.held.grantAt = now + 1 }}},
		"it leads":                                {is: []func(*state){leads}},
		"it leads, and someone waits":             {is: []func(*state){leads, asks}, want: answer},
		"the renewal is due":                      {is: []func(*state){leads, func(s *state) { s.held.renewAt = now }}, want: renew},
		"the renewal is out":                      {is: []func(*state){leads, asking(requestRenew), func(s *state) { s.held.renewAt = now }}},
		"all have left":                           {is: []func(*state){leads, gone}, want: releaseUnneeded},
		"all have left, and it is kept":           {is: []func(*state){leads, gone, func(s *state) { s.retained = now + 1 }}},
		"it is superseded":                        {is: []func(*state){leads, func(s *state) { s.phase = superseded }}, want: releaseUnneeded},
		"the database contradicts it":             {is: []func(*state){leads, func(s *state) { s.disagrees = true }}, want: releaseDisputed},
		"it leads, and the database is not there": {is: []func(*state){leads, func(s *state) { s.seen.unreached = true }}, want: releaseUnreached},
		"the leader is silent":                    {is: []func(*state){leads, silent}, want: releaseSilent},
		"silent while an epoch is granted":        {is: []func(*state){holds, silent, asking(requestGrant)}},
		"the leader is to stop":                   {is: []func(*state){leads, func(s *state) { s.seen.offer = given }}, want: releaseOffered},
		"not before its time":                     {is: []func(*state){leads, func(s *state) { s.seen.offer = given; s.seen.offer.Begins = now + 1 }}},
		"an attempt without an answer is left":    {is: []func(*state){gone, func(s *state) { s.ended, s.leftovers.uncertain = true, true }}, want: releaseUncertain},
		"it has got a lease": {is: []func(*state){seen(elector.Held), silent, func(s *state) {
			s.leftovers.uncertain, s.seen.observation.Incarnation, s.seen.observation.Index = true, "mine", 8
		}}, want: releaseStray},
		"a silent worker has gone": {is: []func(*state){gone, silent, func(s *state) { s.leftovers.unresponsive = lease }}, want: releaseVacant},
	} {
		s := state{identity: identity{worker: "w", incarnation: "mine"}, membership: membership{campaigners: 1}}
		for _, is := range c.is {
			is(&s)
		}
		if got := s.next(now); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
