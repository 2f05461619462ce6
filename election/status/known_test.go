package status

import (
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// TestStates has, for each state, what a proxy knows when it is shown, and what is more important than that.
func TestStates(t *testing.T) {
	t.Parallel()
	const now = time.Hour
	full := errors.New("the disk is full")
	free := History{LeaderlessSince: 10 * time.Minute}
	for name, c := range map[string]struct {
		known Known
		want  Shown
	}{
		"a worker here leads": {
			Known{Leader: LeaderHere, History: History{LedSince: time.Minute}, LeaseUntil: now + time.Second, Paused: true},
			Shown{State: Led, Since: time.Minute, Until: now + time.Second},
		},
		"a worker elsewhere leads": {
			Known{Leader: LeaderElsewhere, History: History{LedSince: time.Minute}, LeaseUntil: now + time.Second},
			Shown{State: Led, Since: time.Minute, Until: now + time.Second},
		},
		"it is not known until when": {Known{Leader: LeaderElsewhere, History: History{LedSince: time.Minute}}, Shown{State: Led, Since: time.Minute}},
		"its lease is being read again": {
			Known{Leader: LeaderElsewhere, LeaseUntil: now - time.Second, AnswerWithin: 2 * time.Second}, Shown{State: Led, Until: now},
		},
		"that answer is overdue": {
			Known{Leader: LeaderElsewhere, LeaseUntil: now - 2*time.Second, AnswerWithin: 2 * time.Second}, Shown{Since: now - 2*time.Second, Why: errUnconfirmed},
		},
		"the fence is lost":                     {Known{Leader: LeaderNone, History: free, Lost: full, Paused: true}, Shown{State: Blocked, Since: free.LeaderlessSince, Why: full}},
		"a candidacy cannot lead":               {Known{Leader: LeaderNone, Candidacies: Candidacies{Fault: full}}, Shown{State: Blocked, Why: full}},
		"no candidacy can begin":                {Known{Leader: LeaderNone, Unusable: full}, Shown{State: Blocked, Why: full}},
		"a pause":                               {Known{Leader: LeaderNone, History: free, Paused: true, PausedSince: time.Minute, WatchErr: full}, Shown{State: Paused, Since: time.Minute}},
		"a pause that began at an unknown time": {Known{Leader: LeaderNone, History: free, Paused: true}, Shown{State: Paused, Since: free.LeaderlessSince}},
		"its lease is not confirmed":            {Known{Leader: LeaderNone, Candidacies: Candidacies{Unconfirmed: time.Minute}, Holder: HolderHere}, Shown{Since: time.Minute, Why: errUnconfirmed}},
		"its lease is not confirmed, and why":   {Known{Leader: LeaderNone, Candidacies: Candidacies{Unconfirmed: time.Minute, UnconfirmedWhy: full}}, Shown{Since: time.Minute, Why: full}},
		"the lease service cannot be watched":   {Known{Leader: LeaderNone, WatchErr: full, FailingSince: time.Minute, Unreached: errUnseen}, Shown{Since: time.Minute, Why: full}},
		"the database does not answer":          {Known{Leader: LeaderNone, History: free, Unreached: full, Holder: HolderUnknown}, Shown{Since: free.LeaderlessSince, Why: full}},
		"a grant elsewhere is unconfirmed":      {Known{Leader: LeaderNone, Holder: HolderRecorded}, Shown{Why: ErrUncertainGrant}},
		"an offer":                              {Known{Leader: LeaderNone, History: free, Offered: true, OfferBegins: 20 * time.Minute, Holder: HolderUnknown}, Shown{State: Handover, Since: 20 * time.Minute}},
		"an offer that begins later":            {Known{Leader: LeaderNone, History: free, Offered: true, OfferBegins: 2 * now}, Shown{State: Handover, Since: now}},
		"a grant fails, and another one tries":  {Known{Leader: LeaderNone, Candidacies: Candidacies{Ungranted: full}, Holder: HolderUnknown}, Shown{State: Blocked, Why: full}},
		"a grant fails, and it waits":           {Known{Leader: LeaderNone, Candidacies: Candidacies{Ungranted: full, Waiting: true}}, Shown{State: Blocked, Why: full}},
		"a grant fails, and would again":        {Known{Leader: LeaderNone, Candidacies: Candidacies{Ungranted: full, Obstructed: true, Idle: true}}, Shown{State: Blocked, Why: full}},
		"a grant failed once":                   {Known{Leader: LeaderNone, Candidacies: Candidacies{Ungranted: full, Idle: true}}, Shown{State: Idle}},
		"held elsewhere without an epoch":       {Known{Leader: LeaderNone, Holder: HolderUnknown}, Shown{State: Electing, Why: errUngranted}},
		"held here, and not granted yet":        {Known{Leader: LeaderNone, Holder: HolderHere}, Shown{State: Electing}},
		"waiting":                               {Known{Leader: LeaderNone, Candidacies: Candidacies{Waiting: true}}, Shown{State: Electing}},
		"held here, and the grant is blocked":   {Known{Leader: LeaderNone, Candidacies: Candidacies{GrantBlocked: true}, Holder: HolderHere}, Shown{State: Blocked}},
		"waiting, and a grant is blocked":       {Known{Leader: LeaderNone, Candidacies: Candidacies{GrantBlocked: true, Waiting: true}}, Shown{State: Blocked}},
		"waiting, and no one is served":         {Known{Leader: LeaderNone, Candidacies: Candidacies{Waiting: true, Unserved: full}}, Shown{State: Blocked, Why: full}},
		"nothing was read":                      {Known{Candidacies: Candidacies{Idle: true}}, Shown{Why: errUnseen}},
		"idle":                                  {Known{Leader: LeaderNone, History: free, Candidacies: Candidacies{Idle: true, Frozen: full}}, Shown{State: Idle, Since: free.LeaderlessSince}},
		"idle after a pause":                    {Known{Leader: LeaderNone, History: free, Candidacies: Candidacies{Idle: true}, Resumed: now}, Shown{State: Idle, Since: now}},
		"frozen":                                {Known{Leader: LeaderNone, Candidacies: Candidacies{Frozen: full, Barred: errUnseen}}, Shown{State: Blocked, Why: full}},
		"barred":                                {Known{Leader: LeaderNone, Candidacies: Candidacies{Barred: full}}, Shown{State: Blocked, Why: full}},
		"no one is connected":                   {Known{Leader: LeaderNone, History: free, FreeSince: 20 * time.Minute}, Shown{State: Absent, Since: 20 * time.Minute}},
		"someone was not meant to lead until just now": {
			Known{Leader: LeaderNone, History: History{LeaderlessSince: 10 * time.Minute, NoLeaderNeededUntil: 50 * time.Minute}, Candidacies: Candidacies{Waiting: true}},
			Shown{State: Electing, Since: 50 * time.Minute},
		},
	} {
		if got := c.known.At(now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestHistory: a takeover is measured from the earliest sign that the last leader had stopped, and a leader ends that.
func TestHistory(t *testing.T) {
	t.Parallel()
	var h History
	h.Follow(false, 10)
	h.EndedLeading(8, fencing.EndingLeft)
	h.EndedLeading(9, fencing.EndingExpired)
	h.Follow(false, 20)
	if h.LeaderlessSince != 10 || h.LastLed != 8 || h.LastEnded != fencing.EndingLeft || h.WantedSince() != 10 {
		t.Errorf("without a leader: %+v", h)
	}
	h.Follow(true, 30)
	h.Follow(true, 40)
	if h != (History{LedSince: 30}) || h.WantedSince() != 0 {
		t.Errorf("with a leader: %+v", h)
	}
	h.Follow(false, 50)
	if h.LeaderlessSince != 50 || h.LedSince != 0 {
		t.Errorf("after it: %+v", h)
	}
}

func TestEachStateIsFoundByItsName(t *testing.T) {
	t.Parallel()
	for _, s := range States() {
		if got := StateOf(s.String()); got != s {
			t.Errorf("%v is found as %v", s, got)
		}
	}
	if got := StateOf("of a newer version"); got != Unknown {
		t.Errorf("a name that is not known is %v", got)
	}
}
