package admin

import (
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
)

// resourceViews converts the state of the elections to the form that the admin address
// returns.
func resourceViews(statuses []status.Resource, m *Metrics) []ResourceView {
	views := make([]ResourceView, 0, len(statuses))
	for _, s := range statuses {
		v := ResourceView{
			Database:   s.Database,
			Resource:   s.Resource,
			State:      s.State.String(),
			GrantedTo:  s.Record.Worker,
			Proxy:      s.Proxy,
			Here:       s.Local,
			Epoch:      int64(s.Record.Epoch),
			Leaderless: s.Leaderless.Seconds(),

			FalseAlarms:   s.FalseAlarms,
			GuardedTables: s.Record.Guards,
			Orders:        orders(s),
			Workers:       []WorkerView{},
		}
		v.Refused, v.Stale, v.Discarded = m.StoppedSoFar(s.Database, s.Resource)
		if !s.Record.GrantedAt.IsZero() { // an epoch may have been raised without a grant
			since := s.Record.GrantedAt.UTC().Truncate(time.Millisecond)
			v.Since = &since
		}
		if s.State == status.Led {
			v.Leader = s.Record.Worker
		}
		if !s.StateSince.IsZero() {
			since := s.StateSince.UTC().Truncate(time.Millisecond)
			v.StateSince = &since
		}
		if !s.AsOf.IsZero() {
			at := s.AsOf.UTC().Truncate(time.Millisecond)
			v.AsOf = &at
		}
		if s.LeaseLeft > 0 {
			until := time.Now().Add(s.LeaseLeft).UTC().Truncate(time.Millisecond)
			v.ConfirmedUntil = &until
		}
		if s.Reason != nil {
			v.StateReason = s.Reason.Error()
		}
		if s.Local {
			left := s.LeaseLeft.Seconds()
			v.LeaseLeft = &left
		}
		if waits(s) { // otherwise the takeover was another proxy's, and is over
			v.Blocked, v.Awaits = s.BlockedBy, m.AwaitedBy(s.Database, s.Resource)
		}
		if s.WatchError != nil {
			v.Election = s.WatchError.Error()
		}
		for _, c := range s.Candidacies {
			v.Workers = append(v.Workers, workerView(c))
			if c.Campaigns && c.Status.Role == fencing.Follower {
				v.Waiting = append(v.Waiting, c.Worker)
			}
		}
		views = append(views, v)
	}
	return views
}

// orders says which orders are in force, or lost.
func orders(s status.Resource) []string {
	const stamp = "2006-01-02 15:04:05 MST"
	all := s.Orders
	if o := s.LostOrder; o != nil {
		all = []string{fmt.Sprintf("the %s by order of %q of %s is lost, after a failover or a restore: give it again if it still counts",
			o.Kind, o.AskedBy, o.AskedAt.UTC().Format(stamp))}
	}
	if s.Offered != "" {
		all = append(slices.Clone(all), fmt.Sprintf("handed over to worker %q, if it takes the lead before %s", s.Offered, s.OfferedUntil.UTC().Format(stamp)))
	}
	return all
}

// waits reports whether a worker here may be waiting for a takeover.
func waits(s status.Resource) bool { return s.Leaderless > 0 && len(s.Candidacies) > 0 }

func workerView(c status.Candidacy) WorkerView {
	v := WorkerView{
		Worker:         c.Worker,
		User:           c.User,
		Incarnation:    c.Incarnation,
		Role:           c.Status.Role.String(),
		Epoch:          int64(c.Status.Epoch),
		Connections:    c.Members,
		Unresponsive:   c.Unresponsive,
		Silence:        c.Silence.Seconds(),
		Observes:       c.Observes,
		FalseAlarms:    c.FalseAlarms,
		LongestSilence: c.LongestSilence.Seconds(),
	}
	if c.Heartbeat > 0 {
		seconds := c.Heartbeat.Seconds()
		v.Heartbeat = &seconds
	}
	if c.WorkerTimeout > 0 {
		seconds := c.WorkerTimeout.Seconds()
		v.WorkerTimeout = &seconds
	}
	if c.Status.Role == fencing.Follower && c.Status.Lapsed {
		v.Role = "lapsed"
	}
	if c.Status.Fault != nil {
		v.Fault = c.Status.Fault.Error()
	}
	if c.Status.Barred != nil {
		v.Barred = c.Status.Barred.Message
	}
	return v
}
