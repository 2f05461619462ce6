package recorded

import (
	"errors"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// TestWhatElseTheDatabaseKnows: a proxy shows resources without a worker of its own, and knows of workers elsewhere that
// want to lead. It shows nothing old as current.
func TestWhatElseTheDatabaseKnows(t *testing.T) {
	t.Parallel()
	now := time.Now()
	row := func(resource string, s status.State) seen {
		return seen{Row: Row{Database: "shop", Resource: resource, State: s, Epoch: 3, Worker: "w", Proxy: "fence-2"}, since: now.Add(-time.Second), wanted: now.Add(-time.Hour)}
	}
	local := func(resource string, s status.State) status.Resource {
		return status.Resource{Database: "shop", Resource: resource, State: s, Record: fencing.Record{Epoch: 3}}
	}
	for _, c := range []struct {
		name          string
		local, row    status.State
		age           time.Duration
		here          bool
		want          status.State
		wanted, knows bool // leaderless counts; the leader's proxy is known
	}{
		{"led elsewhere", 0, status.Led, 0, false, status.Led, false, true},
		{"nobody anywhere", 0, status.Absent, 0, false, status.Absent, true, true},
		{"nobody needs to", 0, status.Idle, 0, false, status.Idle, false, true},
		{"outdated", 0, status.Led, outdated + time.Second, false, status.Unknown, true, true},
		{"the last worker here has just left", status.Absent, status.Led, 0, true, status.Absent, false, true},
		{"workers elsewhere try to lead", status.Absent, status.Electing, 0, true, status.Electing, true, true},
		{"a silent worker here, and others elsewhere that try to lead", status.Idle, status.Electing, 0, true, status.Electing, true, true},
		{"led here", status.Led, status.Electing, 0, true, status.Led, false, true},
		{"what was known is old", status.Absent, status.Idle, outdated + time.Second, true, status.Absent, false, false},
	} {
		r := NewReader()
		r.known["shop"] = reading{at: now.Add(-c.age), rows: map[string]seen{"billing": row("billing", c.row)}}
		var known []status.Resource
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
		if fromThere := !c.here || c.want == status.Electing; fromThere != got.AsOf.Equal(now.Add(-c.age)) {
			t.Errorf("%s: as of %s", c.name, got.AsOf)
		}
		if c.want == status.Unknown && !errors.Is(got.Reason, errOutdated) {
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
		local       status.State
		localSince  time.Duration
		epoch       fencing.Epoch // here; the database has 3
		row         status.State
		rowSince    time.Duration
		here        bool // a worker of this proxy leads
		want        status.State
		wantedEpoch fencing.Epoch
	}{
		{"an order without workers here", status.Paused, time.Minute, 2, status.Paused, time.Minute, false, status.Paused, 3},
		{"workers here read the fence themselves", status.Electing, time.Minute, 2, status.Electing, time.Minute, false, status.Electing, 2},
		{"a lease elsewhere that gives no lead", status.Led, time.Minute, 3, status.Electing, time.Minute, false, status.Electing, 3},
		{"a grant of which the database was not told yet", status.Led, time.Second, 3, status.Electing, time.Minute, false, status.Led, 3},
		{"a reading from before the lead", status.Led, time.Minute, 3, status.Electing, time.Second, false, status.Led, 3},
		{"a leader here", status.Led, time.Minute, 3, status.Electing, time.Minute, true, status.Led, 3},
	} {
		r := NewReader()
		r.known["shop"] = reading{at: now, rows: map[string]seen{"billing": {
			Row: Row{Database: "shop", Resource: "billing", State: c.row, Epoch: 3}, since: now.Add(-c.rowSince), wanted: now.Add(-c.rowSince)}}}
		got := r.Merge([]status.Resource{{Database: "shop", Resource: "billing", State: c.local, StateSince: now.Add(-c.localSince), Local: c.here, Record: fencing.Record{Epoch: c.epoch}}})[0]
		if got.State != c.want || got.Record.Epoch != c.wantedEpoch {
			t.Errorf("%s: %s, epoch %d", c.name, got.State, got.Record.Epoch)
		}
	}
}

// TestOfAPauseTheNewerReadingCounts: a proxy without workers looks rarely, and so does the reader.
func TestOfAPauseTheNewerReadingCounts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	paused, over := status.Paused, status.Absent
	for _, c := range []struct {
		name       string
		local, row status.State
		asked, at  time.Duration // how long ago
		here       bool          // there are workers here
		want       status.State
	}{
		{"the proxy knows that it is over", over, paused, time.Second, 4 * time.Second, false, over},
		{"the database has said so since", paused, over, 4 * time.Second, time.Second, false, over},
		{"the proxy knows that it has begun", paused, over, time.Second, 4 * time.Second, false, paused},
		{"the database knows that it has begun", over, paused, 4 * time.Second, time.Second, false, paused},
		{"the proxy asks once a second", paused, over, time.Second, 0, true, paused},
	} {
		r := NewReader()
		r.known["shop"] = reading{at: now.Add(-c.at), rows: map[string]seen{"billing": {Row: Row{Database: "shop", Resource: "billing", State: c.row, Epoch: 3}, since: now}}}
		local := status.Resource{Database: "shop", Resource: "billing", State: c.local, OrdersAsked: now.Add(-c.asked), Record: fencing.Record{Epoch: 3}}
		if c.here {
			local.Candidacies = []status.Candidacy{{Worker: "w"}}
		}
		if got := r.Merge([]status.Resource{local})[0].State; got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// TestALeaseThatGivesNoLeadEndsNoWait: the lease passes between workers of which none is granted an epoch, among them the one that
// led last. Since when no one leads stays the same, at the proxies as well, until someone leads or no one is meant to.
func TestALeaseThatGivesNoLeadEndsNoWait(t *testing.T) {
	t.Parallel()
	now := time.Now()
	row := func(s status.State, epoch int64, says bool) seen {
		return seen{Row: Row{Database: "shop", Resource: "billing", State: s, Epoch: epoch, Worker: "w", SaysLed: says}, since: now, wanted: now}
	}
	was := row(status.Electing, 3, false)
	was.wanted, was.since = now.Add(-time.Hour), now.Add(-time.Hour)
	for _, c := range []struct {
		name  string
		then  []seen
		hours float64
	}{
		{"others have it", []seen{row(status.Electing, 3, false)}, 1},
		{"who led last has it", []seen{row(status.Led, 3, false), row(status.Electing, 3, false)}, 1},
		{"who led last leads", []seen{row(status.Led, 3, true), row(status.Electing, 3, false)}, 0},
		{"another was granted an epoch", []seen{row(status.Led, 4, false), row(status.Electing, 4, false)}, 0},
		{"nobody is meant to lead", []seen{row(status.Idle, 3, false), row(status.Electing, 3, false)}, 0},
	} {
		last := was
		for _, next := range c.then {
			last = next.follows(last)
		}
		r := NewReader()
		r.known["shop"] = reading{at: now, rows: map[string]seen{"billing": last}}
		local := []status.Resource{{Database: "shop", Resource: "billing", State: status.Electing, StateSince: now, Leaderless: time.Millisecond, Record: fencing.Record{Epoch: fencing.Epoch(last.Epoch)}}}
		for where, got := range map[string]status.Resource{"with workers": r.Merge(local)[0], "without": r.Merge(nil)[0]} {
			if d := got.Leaderless.Round(time.Hour).Hours(); d != c.hours {
				t.Errorf("%s: at a proxy %s, nobody leads for %v", c.name, where, got.Leaderless)
			}
			if d := now.Sub(got.StateSince).Round(time.Hour).Hours(); d != c.hours && (c.hours == 0 || len(c.then) == 1) {
				t.Errorf("%s: at a proxy %s, it is electing for %v", c.name, where, now.Sub(got.StateSince))
			}
		}
	}
	r := NewReader()
	r.known["shop"] = reading{at: now, rows: map[string]seen{"billing": was}}
	local := status.Resource{Database: "shop", Resource: "billing", State: status.Led, Local: true, Record: fencing.Record{Epoch: 3}}
	r.Merge([]status.Resource{local})
	local.State, local.Local, local.Leaderless = status.Electing, false, time.Millisecond
	if got := r.Merge([]status.Resource{local})[0].Leaderless; got > time.Minute {
		t.Errorf("after a lead here, nobody leads for %v", got)
	}
}
