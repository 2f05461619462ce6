package election

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// idle is a connection that shows no activity.
type idle struct{ n int }

func (*idle) Activity() (uint64, bool) { return 0, false }
func (*idle) StatusChanged()           {}
func (*idle) EpochEnds(fencing.Drain)  {}

func membersOf(all ...member) membership {
	s := newMembership()
	for i, m := range all {
		s.add(&idle{i}, m)
	}
	return s
}

func TestLongestTimeoutOfCampaigningMembersCounts(t *testing.T) {
	t.Parallel()
	observer := member{timeout: time.Hour}
	for name, c := range map[string]struct {
		members []member
		want    time.Duration
	}{
		"nobody":         {nil, 0},
		"an observer":    {[]member{observer}, 0},
		"configured":     {[]member{{campaigns: true, timeout: -1}, observer}, time.Second},
		"the longest":    {[]member{{campaigns: true, timeout: -1}, {campaigns: true, timeout: time.Minute}, observer}, time.Minute},
		"one without it": {[]member{{campaigns: true, timeout: time.Minute}, {campaigns: true}}, 0},
	} {
		s := membersOf(c.members...)
		if got := s.timeout(time.Second); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWhoJoinsAgainIsOneMember: a connection joins again when its registration is refused.
func TestWhoJoinsAgainIsOneMember(t *testing.T) {
	t.Parallel()
	s, who := newMembership(), &idle{}
	s.add(who, member{campaigns: true})
	s.add(who, member{campaigns: true})
	if s.remove(who); s.campaigners != 0 || s.needed() {
		t.Errorf("%d campaign after the only member has left", s.campaigners)
	}
}

// TestWhoWakesTheLoop: only a member without whom something would be different.
func TestWhoWakesTheLoop(t *testing.T) {
	t.Parallel()
	var now time.Duration
	r, _ := resourceElsewhere("other", &now)
	alike := fencing.JoinRequest{Worker: "w", WorkerTimeout: -1}
	patient := alike
	patient.WorkerTimeout = time.Minute
	c := newCandidacy(r, nil, alike, history{})
	first, second, third := &idle{1}, &idle{2}, &idle{3}
	join := func(req fencing.JoinRequest, m *idle) func() { return func() { c.admitLocked(req, m) } }
	leave := func(m *idle) func() { return func() { c.leaveLocked(m, true) } }
	for _, step := range []struct {
		name  string
		do    func()
		wakes bool
	}{
		{"the first one joins", join(alike, first), true},
		{"another one joins", join(alike, second), false},
		{"it leaves", leave(second), false},
		{"one with another timeout joins", join(patient, third), true},
		{"it leaves, too", leave(third), true},
		{"the last one leaves", leave(first), true},
	} {
		step.do()
		woken := len(c.poke) > 0
		if woken != step.wakes {
			t.Errorf("%s: the loop is woken: %t, want %t", step.name, woken, step.wakes)
		}
		if woken {
			<-c.poke
		}
	}
}

func TestTheShortestPromiseCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		members []member
		want    time.Duration
	}{
		"nobody":       {nil, 0},
		"no promise":   {[]member{{campaigns: true}}, 0},
		"an observer":  {[]member{{heartbeat: time.Second}, {campaigns: true}}, 0},
		"one of two":   {[]member{{campaigns: true, heartbeat: time.Second}, {campaigns: true}}, time.Second},
		"the shortest": {[]member{{campaigns: true, heartbeat: time.Minute}, {campaigns: true, heartbeat: time.Second}}, time.Second},
	} {
		s := membersOf(c.members...)
		if got := s.heartbeat(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWhoSetsItsNextTokenDoesNotSupersedeItself: its connection has left the candidacy of its former token
// when the next one is granted. What other connections of its name were decided under, no one knows.
func TestWhoSetsItsNextTokenDoesNotSupersedeItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		token  int64
		others int
		by     string
		want   bool
	}{
		"the only connection sets a token":        {token: 5, by: "w"},
		"another connection has the former token": {token: 5, others: 1, by: "w", want: true},
		"another worker is elected":               {token: 5, others: 1, by: "other"},
		"at another proxy, by leases":             {by: "w", want: true},
	} {
		var now time.Duration
		r, led := resourceElsewhere("w", &now)
		r.mu.remove(led)
		setter, req := &idle{}, fencing.JoinRequest{Worker: "w", Token: c.token, Campaign: fencing.CampaignWait}
		led = newCandidacy(r, nil, req, history{incarnation: "former"})
		led.admitLocked(req, setter)
		for range c.others {
			led.admitLocked(req, &idle{})
		}
		r.mu.add(led)
		if c.token > 0 {
			req.Token++
			r.enrolLocked(newCandidacy(r, nil, req, history{incarnation: "next"}), req, setter)
		}
		led.r.mu.Lock()
		led.epoch, led.phase = 1, leading
		led.supersedeLocked(fencing.Record{Epoch: 2, Worker: c.by})
		led.r.mu.Unlock()
		if _, got := r.mu.supersededSelf["w"]; got != c.want {
			t.Errorf("%s: it counts as superseded: %t, want %t", name, got, c.want)
		}
	}
}
