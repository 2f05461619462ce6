package recorded

import (
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing"
)

// TestWhatTheDatabaseKnowsBesides: a proxy shows resources without a worker of its own, and knows of workers elsewhere that
// want to lead. It shows nothing old as current.
func TestWhatTheDatabaseKnowsBesides(t *testing.T) {
	t.Parallel()
	now := time.Now()
	row := func(resource string, s election.State) seen {
		return seen{Row: Row{Database: "shop", Resource: resource, State: s, Epoch: 3, Worker: "w", Proxy: "fence-2"}, since: now.Add(-time.Second), wanted: now.Add(-time.Hour)}
	}
	local := func(resource string, s election.State) election.ResourceStatus {
		return election.ResourceStatus{Database: "shop", Resource: resource, State: s, Record: fencing.Record{Epoch: 3}}
	}
	for _, c := range []struct {
		name          string
		local, row    election.State
		age           time.Duration
		here          bool
		want          election.State
		wanted, knows bool // leaderless counts; the leader's proxy is known
	}{
		{"led elsewhere", 0, election.Led, 0, false, election.Led, false, true},
		{"nobody anywhere", 0, election.Absent, 0, false, election.Absent, true, true},
		{"nobody needs to", 0, election.Idle, 0, false, election.Idle, false, true},
		{"outdated", 0, election.Led, outdated + time.Second, false, election.Unknown, true, true},
		{"the last worker here has just left", election.Absent, election.Led, 0, true, election.Absent, false, true},
		{"workers elsewhere try to lead", election.Absent, election.Electing, 0, true, election.Electing, true, true},
		{"a silent worker here, and others elsewhere that try to lead", election.Idle, election.Electing, 0, true, election.Electing, true, true},
		{"led here", election.Led, election.Electing, 0, true, election.Led, false, true},
		{"what was known is old", election.Absent, election.Idle, outdated + time.Second, true, election.Absent, false, false},
	} {
		r := NewReader()
		r.known["shop"] = reading{at: now.Add(-c.age), rows: map[string]seen{"billing": row("billing", c.row)}}
		var known []election.ResourceStatus
		if c.here {
			known = append(known, local("billing", c.local))
		}
		all := r.Merge(known)
		if len(all) != 1 {
			t.Fatalf("%s: %d resources", c.name, len(all))
		}
		got := all[0]
		if got.State != c.want || (got.Leaderless > 0) != c.wanted || (got.Proxy == "fence-2") != c.knows {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.wanted && c.age == 0 && got.Leaderless < time.Hour {
			t.Errorf("%s: leaderless for %s: the state of the lease changes while nobody leads", c.name, got.Leaderless)
		}
		if c.want == election.Unknown && !errors.Is(got.Reason, errOutdated) {
			t.Errorf("%s: because of %v", c.name, got.Reason)
		}
	}
}

// TestWhatTheDatabaseKnowsBetter: an epoch that was raised after the last worker here has left, and that the holder of a lease
// elsewhere does not lead for all that.
func TestWhatTheDatabaseKnowsBetter(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		name        string
		local       election.State
		localSince  time.Duration
		epoch       fencing.Epoch // here; the database has 3
		row         election.State
		rowSince    time.Duration
		here        bool // a worker of this proxy leads
		want        election.State
		wantedEpoch fencing.Epoch
	}{
		{"an order without workers here", election.Paused, time.Minute, 2, election.Paused, time.Minute, false, election.Paused, 3},
		{"workers here read the fence themselves", election.Electing, time.Minute, 2, election.Electing, time.Minute, false, election.Electing, 2},
		{"a lease elsewhere that gives no lead", election.Led, time.Minute, 3, election.Electing, time.Minute, false, election.Electing, 3},
		{"a grant of which the database was not told yet", election.Led, time.Second, 3, election.Electing, time.Minute, false, election.Led, 3},
		{"a reading from before the lead", election.Led, time.Minute, 3, election.Electing, time.Second, false, election.Led, 3},
		{"a leader here", election.Led, time.Minute, 3, election.Electing, time.Minute, true, election.Led, 3},
	} {
		r := NewReader()
		r.known["shop"] = reading{at: now, rows: map[string]seen{"billing": {
			Row: Row{Database: "shop", Resource: "billing", State: c.row, Epoch: 3}, since: now.Add(-c.rowSince), wanted: now.Add(-c.rowSince)}}}
		got := r.Merge([]election.ResourceStatus{{Database: "shop", Resource: "billing", State: c.local, StateSince: now.Add(-c.localSince), Local: c.here, Record: fencing.Record{Epoch: c.epoch}}})[0]
		if got.State != c.want || got.Record.Epoch != c.wantedEpoch {
			t.Errorf("%s: %s, epoch %d", c.name, got.State, got.Record.Epoch)
		}
	}
}
