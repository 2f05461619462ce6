package fencing

import (
	"fmt"
	"strconv"
	"strings"
)

// Subject is one of the resources that a client has chosen for a transaction, as their check
// sees it.
type Subject struct {
	Fence       int32
	Incarnation string // of the candidacy
	// Told is the epoch that was announced to the connection, and Held the one that the
	// candidacy holds; 0 is none.
	Told, Held Epoch
	Claims     bool // see CheckSQL
}

// ChosenCheckSQL returns the check of a transaction for which the client has chosen resources
// by setting fencepost.resource to value. It is the check of each subject, in the order in which
// they are given, in one statement: all sessions must give them in the order of their fences, so
// that two of them never wait for each other through two grants. The first that fails raises its
// error, and no row is returned if none fails.
//
// In front of them it compares value with what the server has for fencepost.resource. If they
// differ, Fencepost and the server disagree about the transaction that the client is in, and it
// raises 22P02.
func ChosenCheckSQL(worker, value string, subjects []Subject) string {
	return choiceCheckSQL(worker, value, "", subjects)
}

// UnchosenCheckSQL returns the check of a transaction for the resource of the startup, in a session
// whose client has chosen before. In front of it, it compares that resource with what the server has for
// fencepost.resource, as ChosenCheckSQL does; the server may also have nothing.
func UnchosenCheckSQL(worker, resource string, own Subject) string {
	return choiceCheckSQL(worker, resource, ` OR COALESCE(`+chosenSetting+`,'') OPERATOR(pg_catalog.=) ''::pg_catalog.text`, []Subject{own})
}

func choiceCheckSQL(worker, value, orElse string, subjects []Subject) string {
	var text strings.Builder
	fmt.Fprintf(&text, `SELECT (COALESCE(%[1]s,'') OPERATOR(pg_catalog.||) ' is set'::pg_catalog.text)::pg_catalog.bool`+
		` WHERE (%[1]s OPERATOR(pg_catalog.=) %[2]s::pg_catalog.text%[3]s) IS NOT TRUE`, chosenSetting, Literal(value), orElse)
	for _, s := range subjects {
		text.WriteString(" UNION ALL ")
		text.WriteString(InlineCheckSQL(s.Fence, worker, s.Incarnation, s.Claims, s.Told, s.Held))
	}
	return text.String()
}

// chosenSetting is what the server has for fencepost.resource.
const chosenSetting = `pg_catalog.current_setting('fencepost.resource',true)`

// MaxResources bounds the value of fencepost.resource, in bytes. Each check of a choice contains it.
const MaxResources = 8 << 10

// ParseResources reads the value of fencepost.resource: names with commas between them, and
// space around them. It returns each name once, in their order, and none for an empty value. ok
// is false if something else than a name is among them, or if the value is too long.
func ParseResources(value string) (names []string, ok bool) {
	if value == "" {
		return nil, true
	}
	if len(value) > MaxResources {
		return nil, false
	}
	seen := map[string]bool{}
	for name := range strings.SplitSeq(value, ",") {
		name = strings.TrimSpace(name)
		if !ValidName(name) {
			return nil, false
		}
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return names, true
}

// InvalidResourcesRefusal is the refusal of a SET fencepost.resource with a value that names no
// resources.
func InvalidResourcesRefusal(value string) *Refusal {
	return &Refusal{
		SQLState: "22023",
		Message:  fmt.Sprintf("invalid value for parameter \"fencepost.resource\": %q", ASCII(shortened(value))),
		Detail:   "{}",
		Hint:     fmt.Sprintf("Name one resource, or several with commas between them, in %d bytes at most. %s", MaxResources, NameRule),
		Usage:    true,
	}
}

// shortened is the beginning of a value, for a message.
func shortened(value string) string {
	const most = 2 * MaxName
	if len(value) <= most {
		return value
	}
	return value[:most] + "..."
}

// TooManyChoicesRefusal is the refusal of a text that chooses too often.
var TooManyChoicesRefusal = &Refusal{
	SQLState: "54000",
	Message:  "the text sets fencepost.resource to too many different values",
	Detail:   "{}",
	Hint:     "Send it in parts.",
	Usage:    true,
}

// TooManyChecksRefusal is the refusal of a statement in front of which the checks of a text would
// become too long.
var TooManyChecksRefusal = &Refusal{
	SQLState: "54000",
	Message:  "the text has too many transactions, each of which needs a check",
	Detail:   "{}",
	Hint:     "Send it in parts, or choose fewer resources at a time by fencepost.resource.",
	Usage:    true,
}

// ChooseLateRefusal is the refusal of a SET LOCAL fencepost.resource that does not come in time
// to choose for its transaction.
var ChooseLateRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "SET LOCAL fencepost.resource must come in a transaction block, before its first statement that is checked and outside savepoints",
	Detail:   "{}",
	Hint:     "Send it right after BEGIN: each transaction is checked once, for the resources that were chosen before.",
	Usage:    true,
}

// ChooseInsideRefusal is the refusal of what chooses for the session, and shares a transaction
// with other statements.
var ChooseInsideRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "the resource of the session cannot change inside a transaction, or together with other statements",
	Detail:   "{}",
	Hint:     "Send it alone, before BEGIN. SET LOCAL fencepost.resource chooses for one transaction.",
	Usage:    true,
}

// ChosenAloneRefusal is the refusal of a statement that runs with its backend registered, in a
// session or transaction that has chosen another resource than that of its startup.
var ChosenAloneRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "no check can stand in front of this statement, and it cannot run while fencepost.resource is set to another resource than the connection was opened with",
	Detail:   "{}",
	Hint:     "Run it on a connection that names the resource when it connects, or, if it can run there, in a transaction block.",
}

// UnseenChoiceRefusal is the refusal of what may choose resources, and whose text Fencepost cannot
// read or does not know.
var UnseenChoiceRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "fencepost.resource and fencepost.token cannot be set by a statement that Fencepost cannot read, or knows by its name only",
	Detail:   "{}",
	Hint:     "Send the SET by itself, and not by EXECUTE: long texts and some settings keep Fencepost from reading what stands beside it. If it is prepared, prepare it again, with a text below 1 KB and without backslashes.",
}

// ChosenParameterRefusal is the refusal of a SET of fencepost.<name>, which is about the resource
// of the startup, while another one is chosen.
func ChosenParameterRefusal(name string) *Refusal {
	return &Refusal{
		SQLState: StateUnfenceable,
		Message:  fmt.Sprintf("fencepost.%s is that of the resource which the connection was opened with, and another one is chosen", ASCII(name)),
		Detail:   "{}",
		Hint:     "RESET fencepost.resource first.",
		Usage:    true,
	}
}

// ChosenOtherwiseRefusal refuses a transaction if the server has another value for
// fencepost.resource than the client has last set, for all that Fencepost knows.
var ChosenOtherwiseRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "fencepost.resource is not what the client has chosen by SET",
	Detail:   "{}",
	Hint:     "Choose by SET or SET LOCAL alone: set_config and functions that set fencepost.resource choose nothing.",
}

// ChooseRefusal is the refusal of a resource that cannot be chosen in a session, only when
// connecting. why says what is particular about it.
func ChooseRefusal(resource, why string) *Refusal {
	return &Refusal{
		SQLState: StateUnfenceable,
		Message:  fmt.Sprintf("resource %s cannot be chosen by SET fencepost.resource: %s", strconv.QuoteToASCII(resource), why),
		Detail:   "{}",
		Hint:     "Open a connection with this resource.",
		Usage:    true,
	}
}

// TooManyChosenRefusal is the refusal of a resource that a connection names beyond its limit.
func TooManyChosenRefusal(resource string, limit int) *Refusal {
	return &Refusal{
		SQLState: "53400",
		Message:  fmt.Sprintf("the connection cannot use resource %s: it has used %d others, and the limit is %d", strconv.QuoteToASCII(resource), limit, limit),
		Detail:   "{}",
		Hint:     "Use another connection, or raise limits.resources_per_connection in Fencepost's configuration.",
		Usage:    true,
	}
}
