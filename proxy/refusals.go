package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/fencepost/fencepost/proxy/wire"

	"github.com/fencepost/fencepost/fencing"
)

// Refusals of the proxy's own. Those of the check are written by
// fencepost.refuse in the database, which knows more.

var twoPhaseRefusal = &fencing.Refusal{
	SQLState: fencing.StateUnfenceable,
	Message:  "two-phase commit cannot be fenced: a prepared transaction outlives the session that was checked",
	Detail:   "{}",
	Hint:     "Commit in one phase, or use a connection that is allowed to write unfenced.",
}

var replicationRefusal = &fencing.Refusal{
	SQLState: fencing.StateUnfenceable,
	Message:  "replication connections cannot be fenced",
	Detail:   "{}",
	Hint:     "Connect to Postgres itself for replication.",
}

// registrationStuckRefusal follows a note whose deletion failed, and may still happen:
// it would then take the next note, and what runs under it would be unseen.
var registrationStuckRefusal = &fencing.Refusal{
	SQLState: fencing.StateNoFence,
	Message:  "the fence cannot be checked: the last note of this connection in the registry could not be deleted",
	Detail:   "{}",
	Hint:     "Connect again.",
}

// needsBlockRefusal is what Postgres says of a DECLARE outside a block. It is
// said in Postgres's place to those who do not lead: what the cursor's query
// holds may run functions while it is analyzed, and read-only mode in front would
// make a block of it.
var needsBlockRefusal = &fencing.Refusal{
	SQLState: "25P01",
	Message:  "DECLARE CURSOR can only be used in transaction blocks",
}

// retryRefusal stands behind a check that was expected to fail and did not.
var retryRefusal = &fencing.Refusal{
	SQLState: fencing.StateNotLeader,
	Message:  "the fast path call was refused while the worker did not lead",
	Detail:   "{}",
	Hint:     "Retry the call.",
}

func faultRefusal(err error) *fencing.Refusal {
	var r *fencing.Refusal
	if errors.As(err, &r) {
		return r
	}
	return &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  "the fence cannot be checked: " + asciiOnly(err.Error()),
		Detail:   "{}",
		Hint:     "See Fencepost's log and the status command; nothing is written until the fence can be checked.",
	}
}

// unfencedRefusal is what a write gets on a connection without a resource.
func unfencedRefusal(user string) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: fencing.StateNotLeader,
		Message:  "this connection names no resource, so it can only read",
		Detail:   detail(map[string]any{"user": user}),
		Hint: "Name the resource that this worker writes, as in options='-c fencepost.resource=billing -c fencepost.worker=host-7:4242', " +
			"or let this user write unfenced by unfenced.users in Fencepost's configuration.",
	}
}

// missingResource is what a connection without a resource gets at startup
// where the configuration refuses it.
func missingResource(user string) *fencing.Refusal {
	r := *unfencedRefusal(user)
	r.Message = "this connection names no resource, and the configuration refuses such connections"
	return &r
}

// supersededRefusal tells a worker that its candidacy is over.
func supersededRefusal(resource, worker, incarnation string, st *fencing.Status) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: fencing.StateSuperseded,
		Message: fmt.Sprintf("worker %s was superseded on resource %s: its epoch %d is below the current epoch %d of worker %s",
			asciiOnly(worker), asciiOnly(resource), st.Epoch, st.Holder.Epoch, asciiOnly(st.Holder.Worker)),
		Detail: statusDetail(resource, worker, incarnation, st),
		Hint:   "Another worker leads. Stop what this worker was doing; connect again only to begin anew from what the database says now.",
	}
}

// readOnlyRefusal is what a write that only the server's read-only mode found
// gets: it hid in a function, a view or a rule.
func readOnlyRefusal(resource, worker, incarnation string, st *fencing.Status) *fencing.Refusal {
	r := &fencing.Refusal{SQLState: fencing.StateNotLeader, Detail: statusDetail(resource, worker, incarnation, st)}
	if st.CanWrite() {
		r.SQLState = fencing.StateStartOver
		r.Message = fmt.Sprintf("worker %s has become leader of resource %s with epoch %d since this transaction began",
			asciiOnly(worker), asciiOnly(resource), st.Epoch)
		r.Hint = "Roll back and start over from the read on: the connection has now been told."
		return r
	}
	r.Message = fmt.Sprintf("worker %s is not the leader of resource %s: it may only read; epoch %d is held by worker %s",
		asciiOnly(worker), asciiOnly(resource), st.Holder.Epoch, asciiOnly(st.Holder.Worker))
	r.Hint = "Ask SHOW fencepost.role before writing, or connect with fencepost.campaign=wait."
	return r
}

// uncheckedRefusal replaces an error of the check itself.
func uncheckedRefusal(cause wire.ServerError) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  "the fence cannot be checked: " + asciiOnly(cause.Message),
		Detail:   detail(map[string]any{"sqlstate": cause.Code}),
		Hint:     "The schema fencepost must be there (fencepost migrate --dsn ...) and readable by this role; then connect again.",
	}
}

func statusDetail(resource, worker, incarnation string, st *fencing.Status) string {
	return detail(map[string]any{
		"resource": resource, "worker": worker, "incarnation": incarnation, "epoch": st.Epoch,
		"current_epoch": st.Holder.Epoch, "current_worker": st.Holder.Worker,
	})
}

// detail is one line of JSON in ASCII.
func detail(v map[string]any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return asciiOnly(string(b))
}

// asciiOnly escapes all else as \uXXXX, so that no client_encoding can refuse
// the message (22P05). Inside JSON strings that is the same text.
func asciiOnly(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r < 0x7f:
			b.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// appendError appends an ErrorResponse for r. Severity is "ERROR" or "FATAL".
func appendError(dst []byte, severity string, r *fencing.Refusal) []byte {
	return wire.AppendServerError(dst, wire.ServerError{Severity: severity, Code: r.SQLState, Message: r.Message, Detail: r.Detail, Hint: r.Hint})
}
