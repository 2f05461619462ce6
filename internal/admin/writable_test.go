package admin_test

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/faults"
)

// TestOnlyAServerThatDoesNotAnswerHidesALeader looks at two resources that are led while
// Postgres, or one database of it, has a fault. That of a database is shown there alone, and
// next to the leader.
func TestOnlyAServerThatDoesNotAnswerHidesALeader(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Minute)
	for _, tt := range []struct {
		name       string
		kind       faults.Kind
		where      string
		state      election.State
		shop, bank bool // whether a reason is given
	}{
		{"the server does not answer", faults.Upstream, faults.InServer, election.Unknown, true, true},
		{"the look at a database fails", faults.Upstream, faults.InDatabase("shop"), election.Led, true, false},
		{"a database lets the control role not in", faults.ControlLogin, faults.InDatabase("shop"), election.Led, true, false},
		{"a database lacks the schema", faults.Schema, faults.InDatabase("shop"), election.Led, true, false},
		{"nobody can log in", faults.Upstream, faults.InControl, election.Led, true, true},
		{"the control role cannot log in", faults.ControlLogin, faults.InControl, election.Led, false, false},
		{"the server is a standby", faults.Upstream, faults.InPrimary, election.Led, true, true},
		{"the lease service does not answer", faults.LeaseService, "lease service", election.Led, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			led := []election.ResourceStatus{
				{Database: "shop", Resource: "billing", State: election.Led, LeaseLeft: time.Second},
				{Database: "bank", Resource: "billing", State: election.Led, LeaseLeft: time.Second},
			}
			lasting := []faults.Active{{Fault: faults.Fault{Kind: tt.kind, Problem: "it fails"}, Where: tt.where, Since: since}}
			for i, s := range admin.Writable(led, lasting, now) {
				reason := []bool{tt.shop, tt.bank}[i]
				if s.State != tt.state || (s.Reason != nil) != reason || (s.LeaseLeft == 0) != (tt.state == election.Unknown) {
					t.Errorf("%s: %+v; want %s, reason %v", s.Database, s, tt.state, reason)
				}
				if tt.state == election.Unknown && (!s.StateSince.Equal(since) || s.Leaderless != time.Minute) {
					t.Errorf("%s: since %v, leaderless for %v; want the fault's", s.Database, s.StateSince, s.Leaderless)
				}
			}
			for _, was := range election.States() {
				want := was
				if tt.state == election.Unknown && was != election.Paused && was != election.Blocked {
					want = election.Unknown
				}
				if got := admin.Writable([]election.ResourceStatus{{Database: "shop", State: was}}, lasting, now)[0].State; got != want && was != election.Led {
					t.Errorf("%s became %s; want %s", was, got, want)
				}
			}
		})
	}
}
