package admin

import (
	"fmt"
	"time"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/internal/faults"
)

// Writable returns the statuses with what the faults that last at the time now make of them.
// While Postgres, or only the database of a resource, does not answer, no write can be
// admitted there, although a lease may be confirmed elsewhere: what is led is then in the
// state Unknown.
func Writable(all []election.ResourceStatus, lasting []faults.Lasting, now time.Time) []election.ResourceStatus {
	for _, f := range lasting {
		if f.Kind != faults.Upstream {
			continue
		}
		for i := range all {
			s := &all[i]
			if s.State != election.Led || f.Where != faults.InServer && f.Where != faults.InDatabase(s.Database) {
				continue
			}
			s.State, s.StateSince, s.Reason = election.Unknown, f.Since, fmt.Errorf("no write can be admitted: Postgres does not answer: %s", f.Problem)
			s.Local, s.LeaseLeft, s.Leaderless = false, 0, max(now.Sub(f.Since), time.Millisecond)
		}
	}
	return all
}
