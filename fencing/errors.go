package fencing

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Refusals that the proxy itself raises. Those of a registration are raised by
// fencepost.refuse in the database, which knows more.

// TwoPhaseRefusal is the refusal of PREPARE TRANSACTION.
var TwoPhaseRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "two-phase commit cannot be fenced: a prepared transaction outlives the session that is registered",
	Hint:     "Commit in one phase, or use a connection that is allowed to write unfenced.",
}

// SetRefusal is the refusal of SET fencepost.<name>, or RESET of it, in a session. It would
// change nothing, and whoever sends it believes that it does.
func SetRefusal(name string) *Refusal {
	r := &Refusal{SQLState: StateCannotChange, Usage: true}
	switch name {
	case "role":
		r.Message = `parameter "fencepost.role" cannot be changed`
		r.Hint = "Fencepost decides who leads. SHOW fencepost.role returns the role of this connection."
	case "resource", "worker", "campaign", "worker_timeout", "heartbeat", "token": // resource and token without a resource
		r.Message = fmt.Sprintf(`parameter "fencepost.%s" cannot be set after connection start`, name)
		r.Hint = fmt.Sprintf("Set it when connecting, as a startup parameter or with options='-c fencepost.%s=...'.", name)
	default:
		r.SQLState = stateUndefinedObject
		r.Message = fmt.Sprintf(`unrecognized configuration parameter "fencepost.%s"`, ASCII(name))
		r.Hint = "In a session, only fencepost.resource, fencepost.epoch and fencepost.token can be set."
	}
	return r
}

// ReplicationRefusal is the refusal of a replication connection at startup.
var ReplicationRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "replication connections cannot be fenced",
	Hint:     "Connect to Postgres itself for replication.",
}

// MemberRefusal is the refusal of a worker whose role is a member of the control role.
func MemberRefusal(user string) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message:  fmt.Sprintf("role %s is a member of Fencepost's control role, and could change the fence", Quoted(user)),
		Hint:     "Revoke that membership, or let workers connect as another role.",
	}
}

// RetiredRefusal ends a session whose backend was ended for a grant that was then given up.
var RetiredRefusal = &Refusal{
	SQLState: "57P01",
	Message:  "terminating connection due to administrator command",
	Detail:   "Another worker was about to be granted an epoch, and that was given up.",
	Hint:     "Connect again.",
	Verbatim: true,
}

// LostRegistrationRefusal ends a session whose backend is no longer in the registry.
var LostRegistrationRefusal = &Refusal{
	SQLState: StateNoFence,
	Message:  "the database has lost the registration of this connection, so that its writes could not be fenced",
	Hint:     "Connect again. Nothing but Fencepost may change the tables of the schema fencepost.",
}

// FaultRefusal returns err if it is a Refusal, and otherwise a refusal that says that
// the fence cannot be checked because of err.
func FaultRefusal(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	return &Refusal{
		SQLState: StateNoFence,
		Message:  "the fence cannot be checked: " + ASCII(err.Error()),
		Hint:     "See Fencepost's log and fencepost status --ready; nothing is written until the fence can be checked.",
	}
}

// OldAwardsRefusal is the refusal of workers whose lease service makes awards that are older
// than the recorded one. err is the answer to the last grant that was asked for.
func OldAwardsRefusal(database string, err error) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message:  "the lease service's awards are older than the recorded one, as if it had been restored or rebuilt: " + FaultRefusal(err).Message,
		Hint:     "Make sure that no other lease service is in use, then run: fencepost generation bump --database " + databaseWord(database),
	}
}

// StartupRefusal is FaultRefusal for a client that connects. If Postgres is shutting down or
// restarting, nothing is wrong with the fence: the client gets Postgres's own SQLSTATE, on
// which pools connect again.
func StartupRefusal(err error) *Refusal {
	var stated interface{ SQLState() string }
	if !errors.As(err, &stated) || !strings.HasPrefix(stated.SQLState(), "57P0") {
		return FaultRefusal(err)
	}
	return &Refusal{
		SQLState: stated.SQLState(),
		Message:  "Postgres is shutting down or restarting: " + ASCII(err.Error()),
		Hint:     "Connect again when Postgres accepts connections.",
	}
}

// UnfencedRefusal is the refusal of a write on a connection without a resource.
func UnfencedRefusal(user string) *Refusal {
	return &Refusal{
		SQLState: StateNotLeader,
		Message:  "this connection names no resource, so it can only read",
		Detail:   Detail(map[string]any{"user": user}),
		Hint: "Waiting does not help. Name the resource that this worker writes, as in options='-c fencepost.resource=billing -c fencepost.worker=host-7:4242', " +
			"or add a route for it (routes in Fencepost's configuration; fencepost explain-route says why none matches), or let this user write without a fence: set it to allow in unfenced.users there.",
	}
}

// UnprovenRefusal is the refusal of a read on a connection without a resource that is not
// proven harmless for this reason, before PostgreSQL 16. unfenced is that of its writes.
func UnprovenRefusal(unfenced *Refusal, why string) *Refusal {
	r := *unfenced
	r.Message = "this connection names no resource, so it can only run reads that are proven harmless: " + ASCII(why)
	r.Hint = "Before PostgreSQL 16, a function can undo read-only mode. " + r.Hint
	return &r
}

// UnprovenHint is the hint of a refused read of a worker that is not the leader, before
// PostgreSQL 16, if the read is not proven harmless for this reason. hint is that of its writes.
func UnprovenHint(why, hint string) string {
	return "Before PostgreSQL 16, a worker that is not the leader may run only reads that are proven harmless: " + ASCII(why) + ". " + hint
}

// UnreadText returns r, a refusal of a text that Fencepost cannot read for this reason. If it is one of a write, it says
// so, because the text may be a read.
func UnreadText(r *Refusal, why string) *Refusal {
	return withHint(r, "Fencepost cannot read this text, so it counts as one that writes: "+ASCII(why))
}

// CountsAsWrite returns r, a refusal of a statement that looks like a read and counts as a write for this reason. If
// there is one, r says so.
func CountsAsWrite(r *Refusal, why string) *Refusal {
	if why == "" {
		return r
	}
	return withHint(r, "This statement counts as one that writes: "+ASCII(why))
}

// withHint returns r with a sentence before its hint, if it is the refusal of a write.
func withHint(r *Refusal, sentence string) *Refusal {
	if r == nil || r.SQLState != StateNotLeader {
		return r
	}
	more := *r
	more.Hint = sentence + ". " + r.Hint
	return &more
}

// MissingResourceRefusal is the refusal, at startup, of a connection without a resource
// if the configuration requires one.
func MissingResourceRefusal(user string) *Refusal {
	r := *UnfencedRefusal(user)
	r.Message = "this connection names no resource, and the configuration refuses such connections"
	return &r
}

// supersededHint is the hint of ZF001.
const supersededHint = "Another worker leads. Stop what this worker was doing. Connect again only to start over from the current state of the database."

// EvictedHint is the hint of ZF001 where no one leads, because an operator ended the lead.
// In SQL both are fencepost.superseded_hint.
const EvictedHint = "An operator ended the lead of this worker. Stop what this worker was doing. Connect again only to start over from the current state of the database."

// hintFor returns the hint of ZF001 for a worker that this record superseded.
func hintFor(by Record) string {
	if by.Worker == "" && by.Source != "" { // no one has the epoch
		return EvictedHint
	}
	return supersededHint
}

// holderText names the holder of an epoch. In SQL it is fencepost.holder.
func holderText(worker string) string {
	if worker == "" {
		return "nobody"
	}
	return "worker " + ASCII(worker)
}

// RestoredHint is the hint of ZF004 where a database was restored from an older state, and
// epoch was granted before. In SQL it is fencepost.restored_hint.
func RestoredHint(database string, epoch Epoch) string {
	return fmt.Sprintf("When all workers of the lost epochs have stopped, run: fencepost generation bump --database %s --above %d", databaseWord(database), epoch)
}

// databaseWord names a database in a command: by its name if that means itself in every shell. In SQL it is
// fencepost.database_word.
func databaseWord(name string) string {
	if plainName.MatchString(name) {
		return name
	}
	return "DATABASE"
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9_.:@%+=,/][A-Za-z0-9_.:@%+=,/-]*$`)

// removedRefusal is the refusal of a worker that has not led, after an operator has removed the resource.
func removedRefusal(resource, worker string) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message:  fmt.Sprintf("an operator removed resource %s after worker %s, which has not led it, connected", ASCII(resource), ASCII(worker)),
		Detail:   Detail(map[string]any{"resource": resource, "worker": worker}),
		Hint:     "Connect again.",
	}
}

// SupersededRefusal is the refusal of a worker whose candidacy is over.
func SupersededRefusal(resource, worker, incarnation string, st *Status) *Refusal {
	if st.Removed && st.Epoch == 0 {
		return removedRefusal(resource, worker)
	}
	if r := LowerToken(resource, worker, incarnation, st.Holder); r != nil {
		return r
	}
	what := fmt.Sprintf("its epoch %d is below", st.Epoch)
	if st.Epoch == 0 {
		what = "it has not led, and cannot lead after"
	}
	return &Refusal{
		SQLState: StateSuperseded,
		Message: fmt.Sprintf("worker %s was superseded on resource %s: %s the current epoch %d of %s",
			ASCII(worker), ASCII(resource), what, st.Holder.Epoch, holderText(st.Holder.Worker)),
		Detail: statusDetail(resource, worker, incarnation, st),
		Hint:   hintFor(st.Holder),
	}
}

// ReadOnlyRefusal is the refusal of a write of a session that may only read, under the status of its candidacy.
func ReadOnlyRefusal(resource, worker, incarnation string, st *Status) *Refusal {
	r := &Refusal{SQLState: StateNotLeader, Detail: statusDetail(resource, worker, incarnation, st)}
	if st.CanWrite() {
		r.SQLState = StateStartOver
		r.Message = fmt.Sprintf("worker %s has become leader of resource %s with epoch %d since this transaction began",
			ASCII(worker), ASCII(resource), st.Epoch)
		r.Hint = "Roll back and start over from your first read: the new role has now been announced to this connection."
		return r
	}
	if st.Barred != nil {
		r.Message, r.Hint = st.Barred.Message, st.Barred.Hint
		return r
	}
	if st.Lapsed {
		r.Message = fmt.Sprintf("the lease of worker %s on resource %s is not confirmed now; it holds epoch %d, and nobody else was granted one",
			ASCII(worker), ASCII(resource), st.Epoch)
		r.Hint = "Retry the transaction."
		return r
	}
	r.Message = fmt.Sprintf("worker %s does not lead resource %s: %s", ASCII(worker), ASCII(resource), heldText(st))
	r.Hint = "Wait until this worker leads (SHOW fencepost.role), or connect with fencepost.campaign=wait."
	return r
}

// heldText says who has the current epoch.
func heldText(st *Status) string {
	if st.Holder.Epoch == 0 {
		return "no epoch was granted yet"
	}
	return fmt.Sprintf("the current epoch %d is held by %s", st.Holder.Epoch, holderText(st.Holder.Worker))
}

// EpochTooHighRefusal is the refusal of a write of a client that has named an epoch which was never granted.
func EpochTooHighRefusal(resource, worker, incarnation string, named Epoch, st *Status) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message: fmt.Sprintf("worker %s has named epoch %d of resource %s, but the current epoch is %d",
			ASCII(worker), named, ASCII(resource), st.Epoch),
		Detail: statusDetail(resource, worker, incarnation, st),
		Hint:   "If the worker did not invent its epoch, the database was restored from an older state: stop all workers of the lost epochs, and run fencepost generation bump --database DATABASE --restored",
	}
}

// GuardedRefusal is the refusal of a write by the trigger of a guarded table, which said why,
// on a resource that leaves the writes of followers to its guards.
func GuardedRefusal(said, resource, worker, incarnation string, st *Status) *Refusal {
	r := ReadOnlyRefusal(resource, worker, incarnation, st)
	if st.Barred == nil && r.SQLState == StateNotLeader {
		r.Message = fmt.Sprintf("worker %s does not lead resource %s: %s; %s", ASCII(worker), ASCII(resource), ASCII(said), heldText(st))
	}
	return r
}

// UnguardedRefusal refuses a connection to a resource whose writes are left to guards, in a
// database where it guards no table.
func UnguardedRefusal(resource string) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message:  fmt.Sprintf("resource %s has fence: tables, and guards no table in this database: nothing would refuse a stale write", ASCII(resource)),
		Hint:     "Guard its tables by fencepost guard add --resource " + ASCII(resource) + " --table TABLE --dsn DSN, or set fence: session in Fencepost's configuration.",
	}
}

// WaitNotice says which worker a client that waits to lead a resource waits for, and why. Only
// its message and hint are used.
func WaitNotice(resource string, st *Status, t *Trouble) *Refusal {
	r := &Refusal{Message: "waiting to lead resource " + strconv.QuoteToASCII(resource)}
	switch {
	case t != nil:
		r.Message += ": " + ASCII(t.Problem)
		if r.Hint = ASCII(t.Remedy); r.Hint != "" {
			r.Hint = "Waiting does not help. " + r.Hint
		}
	case st.Holder.Epoch == 0:
		r.Message += ": no epoch was granted yet"
	case st.Holder.Unconfirmed:
		r.Message += fmt.Sprintf(": epoch %d was granted to %s, and no synchronous standby is known to have confirmed that",
			st.Holder.Epoch, holderText(st.Holder.Worker))
		r.Hint = "Nobody leads until a standby of synchronous_standby_names has confirmed the grant: start one, or change the setting."
	default:
		r.Message += fmt.Sprintf(": worker %s has epoch %d, granted at %s",
			strconv.QuoteToASCII(st.Holder.Worker), st.Holder.Epoch, st.Holder.GrantedAt.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	return r
}

// PoolerRefusal refuses a server that is a connection pooler. Fencepost registers and ends
// backends by their process ids, and a pooler makes up its own.
var PoolerRefusal = &Refusal{
	SQLState: StateNoFence,
	Message:  "the fence cannot be checked: Fencepost's setting upstream.address leads to a connection pooler, not to Postgres",
	Hint:     "Let upstream.address name Postgres itself.",
}

// UnidentifiedBackendRefusal refuses a backend that did not say which one it is, but failed with an error: without its
// process id it cannot be distinguished from that of a pooler.
func UnidentifiedBackendRefusal(code, message string) *Refusal {
	return &Refusal{
		SQLState: StateNoFence,
		Message:  fmt.Sprintf("the fence cannot be checked: Postgres did not say which backend the connection has: %s (SQLSTATE %s)", message, code),
		Hint: "A statement_timeout or transaction_timeout of a few milliseconds causes that, and so does a role that may not call " +
			"pg_backend_pid, pg_postmaster_start_time or clock_timestamp.",
	}
}

func statusDetail(resource, worker, incarnation string, st *Status) string {
	return Detail(map[string]any{
		"resource": resource, "worker": worker, "incarnation": incarnation, "epoch": st.Epoch,
		"current_epoch": st.Holder.Epoch, "current_worker": st.Holder.Worker,
	})
}

// Detail returns one line of JSON in ASCII, "{}" for what cannot be encoded.
func Detail(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "{}"
	}
	return ASCII(string(b))
}

// ASCII escapes all other characters as \uXXXX, so that no client_encoding can reject
// the message (22P05). Inside JSON strings the result has the same meaning.
func ASCII(s string) string {
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
