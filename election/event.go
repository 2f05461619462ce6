package election

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// EventKind says what happened.
type EventKind uint8

const (
	// EventCampaign: a candidacy tries to get the lease.
	EventCampaign EventKind = iota
	// EventGranted: a new epoch was granted. Took counts from the moment the
	// lease was seen free, or from the attempt if that came first.
	EventGranted
	// EventRetaken: the lease was taken again under the epoch held before.
	EventRetaken
	// EventLapsed: the lease of a leader is not confirmed any more.
	EventLapsed
	// EventConfirmed: the lease of a lapsed leader is confirmed again.
	EventConfirmed
	// EventLost: the lease service does not know the term any more.
	EventLost
	// EventReleased: the lease was given back; Reason says why.
	EventReleased
	// EventSuperseded: another candidacy was granted a higher epoch.
	EventSuperseded
	// EventFalseAlarm: a worker whose lease was released for silence came back.
	EventFalseAlarm
	// EventRenewed: the lease was renewed; Margin is what was left.
	EventRenewed
	// EventFailed: a request to the lease service or the fence failed; Err
	// says how.
	EventFailed
	// EventForgotten: nobody has used the resource here for a while, and it is
	// not known any more. It is no candidacy's event: Worker is empty.
	EventForgotten
)

var eventNames = [...]string{"campaign", "granted", "retaken", "lapsed", "confirmed", "lost", "released", "superseded", "false alarm", "renewed", "failed", "forgotten"}

func (k EventKind) String() string { return eventNames[k] }

// Event is one thing that happened to one candidacy, or to a resource.
type Event struct {
	Kind        EventKind
	Database    string
	Resource    string
	Worker      string
	Incarnation string
	Epoch       fencing.Epoch // 0 if the candidacy has none
	// Takeover: the grant took the resource over from another candidacy.
	Takeover bool
	Took     time.Duration
	// Margin is what was left of the lease's trust when a renewal ended.
	Margin time.Duration
	Reason Reason
	Err    error
}
