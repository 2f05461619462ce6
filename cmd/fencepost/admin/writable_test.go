package admin_test

import (
	"testing"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/internal/faults"
)

// TestAFaultOfADatabaseConcernsItAlone looks at two resources that are led while Postgres, or
// one database of it, has a fault.
func TestAFaultOfADatabaseConcernsItAlone(t *testing.T) {
	now := time.Now()
	since := now.Add(-time.Minute)
	for _, tt := range []struct {
		name       string
		kind       faults.Kind
		where      string
		shop, bank election.State
	}{
		{"the server does not answer", faults.Upstream, faults.InServer, election.Unknown, election.Unknown},
		{"a database does not answer", faults.Upstream, faults.InDatabase("shop"), election.Unknown, election.Led},
		{"a database lacks the schema", faults.Schema, faults.InDatabase("shop"), election.Led, election.Led},
		{"the lease service does not answer", faults.LeaseService, "lease service", election.Led, election.Led},
	} {
		t.Run(tt.name, func(t *testing.T) {
			led := []election.ResourceStatus{
				{Database: "shop", Resource: "billing", State: election.Led, LeaseLeft: time.Second},
				{Database: "bank", Resource: "billing", State: election.Led, LeaseLeft: time.Second},
			}
			lasting := []faults.Lasting{{Fault: faults.Fault{Kind: tt.kind, Problem: "it fails"}, Where: tt.where, Since: since}}
			for i, s := range admin.Writable(led, lasting, now) {
				want := []election.State{tt.shop, tt.bank}[i]
				if s.State != want || (s.Reason == nil) != (want == election.Led) || (s.LeaseLeft == 0) != (want == election.Unknown) {
					t.Errorf("%s: %+v; want %s", s.Database, s, want)
				}
				if want == election.Unknown && (!s.StateSince.Equal(since) || s.Leaderless != time.Minute) {
					t.Errorf("%s: since %v, leaderless for %v; want the fault's", s.Database, s.StateSince, s.Leaderless)
				}
			}
		})
	}
}
