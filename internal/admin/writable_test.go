package admin_test

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/status"
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
		state      status.State
		shop, bank bool // whether a reason is given
	}{
		{"the server does not answer", faults.Upstream, faults.InServer, status.Unknown, true, true},
		{"the look at a database fails", faults.Upstream, faults.InDatabase("shop"), status.Led, true, false},
		{"a database lets the control role not in", faults.ControlLogin, faults.InDatabase("shop"), status.Led, true, false},
		{"a database lacks the schema", faults.Schema, faults.InDatabase("shop"), status.Led, true, false},
		{"nobody can log in", faults.Upstream, faults.InControl, status.Led, true, true},
		{"the control role cannot log in", faults.ControlLogin, faults.InControl, status.Led, false, false},
		{"the server is a standby", faults.Upstream, faults.InPrimary, status.Led, true, true},
		{"the lease service does not answer", faults.LeaseService, "lease service", status.Led, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			led := []status.Resource{
				{Database: "shop", Resource: "billing", State: status.Led, LeaseLeft: time.Second},
				{Database: "bank", Resource: "billing", State: status.Led, LeaseLeft: time.Second},
			}
			lasting := []faults.Active{{Fault: faults.Fault{Kind: tt.kind, Problem: "it fails"}, Where: tt.where, Since: since}}
			for i, s := range admin.Writable(led, lasting, now) {
				reason := []bool{tt.shop, tt.bank}[i]
				if s.State != tt.state || (s.Reason != nil) != reason || (s.LeaseLeft == 0) != (tt.state == status.Unknown) {
					t.Errorf("%s: %+v; want %s, reason %v", s.Database, s, tt.state, reason)
				}
				if tt.state == status.Unknown && (!s.StateSince.Equal(since) || s.Leaderless != time.Minute) {
					t.Errorf("%s: since %v, leaderless for %v; want the fault's", s.Database, s.StateSince, s.Leaderless)
				}
			}
			for _, was := range status.States() {
				want := was
				if tt.state == status.Unknown && was != status.Paused && was != status.Blocked {
					want = status.Unknown
				}
				if got := admin.Writable([]status.Resource{{Database: "shop", State: was}}, lasting, now)[0].State; got != want && was != status.Led {
					t.Errorf("%s became %s; want %s", was, got, want)
				}
			}
		})
	}
}
