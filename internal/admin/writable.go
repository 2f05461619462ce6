package admin

import (
	"errors"
	"fmt"
	"time"

	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/internal/faults"
)

// Writable returns the statuses with what the faults that last at the time now make of them. While Postgres as a whole
// cannot be reached or does not answer, who leads, and which workers there are, is Unknown, although a lease may be
// confirmed elsewhere; what is Paused or Blocked stays so. A fault of one database is no proof that its leaders cannot
// write: it may be that only the control role cannot log in, or that only the look at the schema waits for a lock. Such
// a fault is the Reason next to the state. So is that Postgres lets no one log in, and that it is a standby, whatever
// the state.
func Writable(all []status.Resource, lasting []faults.Active, now time.Time) []status.Resource {
	for _, f := range lasting {
		for i := range all {
			s := &all[i]
			switch {
			case blocksWorkers(f) && s.Reason == nil:
				s.Reason = errors.New(f.Problem)
			case f.Where == faults.InServer && f.Kind == faults.Upstream && s.State != status.Paused && s.State != status.Blocked && s.State != status.Unknown:
				if s.State == status.Led {
					s.Local, s.LeaseLeft, s.Leaderless = false, 0, max(now.Sub(f.Since), time.Millisecond)
				}
				s.State, s.StateSince, s.Reason = status.Unknown, f.Since, fmt.Errorf("Postgres cannot be reached or does not answer: %s", f.Problem)
			case s.State == status.Led && f.Where == faults.InDatabase(s.Database):
				s.Reason = fmt.Errorf("the database has a fault: %s", f.Problem)
			}
		}
	}
	return all
}

// blocksWorkers reports whether a fault keeps workers from leading or from connecting, whatever
// the state says.
func blocksWorkers(f faults.Active) bool {
	return f.Where == faults.InPrimary ||
		f.Where == faults.InControl && f.Kind == faults.Upstream
}
