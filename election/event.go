package election

import (
	"time"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing"
)

// EventKind says what happened.
type EventKind uint8

const (
	// EventCampaign: a candidacy tries to acquire the lease.
	EventCampaign EventKind = iota
	// EventGranted: a new epoch was granted. Grant counts from when the lease was first
	// seen free, or from the attempt if that was earlier. Took counts from when the leader
	// before was last confirmed, and equals Grant if that is not known.
	EventGranted
	// EventRetaken: the lease was acquired again under the epoch held before, or the candidacy
	// has brought the token for which the epoch was granted to another.
	EventRetaken
	// EventLapsed: a leader's lease is no longer confirmed.
	EventLapsed
	// EventConfirmed: a lapsed leader's lease is confirmed again.
	EventConfirmed
	// EventLost: the lease service no longer knows the term.
	EventLost
	// EventReleased: the lease was released; Reason says why.
	EventReleased
	// EventSuperseded: another candidacy was granted a higher epoch.
	EventSuperseded
	// EventFalseAlarm: a worker whose lease was released as unresponsive came back before
	// anyone else was granted an epoch.
	EventFalseAlarm
	// EventResumed: a worker that has an epoch, and was not superseded, continued after a silence
	// longer than any before. Took is how long it was silent.
	EventResumed
	// EventRenewed: the lease was renewed.
	EventRenewed
	// EventFailed: a request to the lease service or the fence failed; Err is the
	// error.
	EventFailed
	// EventForgotten: the resource has not been used here for a while and was
	// forgotten. It does not concern a candidacy: Worker is empty.
	EventForgotten
)

var eventNames = [...]string{"campaign", "granted", "retaken", "lapsed", "confirmed", "lost", "released", "superseded", "false alarm", "resumed", "renewed", "failed", "forgotten"}

func (k EventKind) String() string { return eventNames[k] }

// Event is something that happened to one candidacy or to a resource.
type Event struct {
	Kind        EventKind
	Database    string
	Resource    string
	Worker      string
	Incarnation string
	Epoch       fencing.Epoch // 0 if the candidacy has none
	// Takeover means that the grant took the resource over from another candidacy.
	Takeover bool
	Took     time.Duration
	Grant    time.Duration
	Reason   elector.Reason
	Err      error
}
