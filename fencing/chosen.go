package fencing

import (
	"fmt"
	"strconv"
	"strings"
)

// MaxResources bounds the value of fencepost.resource, in bytes.
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

// ChooseLateRefusal is the refusal of a SET LOCAL fencepost.resource that does not come in time
// to choose for its transaction.
var ChooseLateRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "SET LOCAL fencepost.resource must come in a transaction block, before its first statement that is checked and outside savepoints",
	Hint:     "Send it right after BEGIN: each transaction is checked once, for the resources that were chosen before.",
	Usage:    true,
}

// ChooseInTransactionRefusal is the refusal of what chooses for the session, and shares a transaction
// with other statements.
var ChooseInTransactionRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "the resource of the session cannot change inside a transaction, or together with other statements",
	Hint:     "Send it alone, before BEGIN. SET LOCAL fencepost.resource chooses for one transaction.",
	Usage:    true,
}

// WriteWithChoiceRefusal is the refusal of a write of a leader that shares a text or a batch with what chooses
// resources or sets a token, and is not in a block that has chosen.
var WriteWithChoiceRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "what shares a text or a batch with SET or RESET of fencepost.resource or fencepost.token may only read, except in the block that SET LOCAL chooses for",
	Hint:     "Send it by itself, before or after that.",
	Usage:    true,
}

// ExecutedChoiceRefusal is the refusal of an SQL EXECUTE of a SET of fencepost.resource or fencepost.token.
var ExecutedChoiceRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "a prepared SET of fencepost.resource or fencepost.token cannot be run by EXECUTE",
	Hint:     "Send the SET itself, or bind it by messages, as drivers do.",
	Usage:    true,
}

// UnreadableChoiceRefusal is the refusal of a leader's text that may choose resources or set a token, and that
// Fencepost cannot read.
var UnreadableChoiceRefusal = &Refusal{
	SQLState: StateUnfenceable,
	Message:  "Fencepost cannot read this text, which may set fencepost.resource or fencepost.token",
	Hint:     "Send the SET by itself, or a shorter text.",
	Usage:    true,
}

// ChosenParameterRefusal is the refusal of a SET of fencepost.<name>, which concerns the resource
// of the startup, while another one is chosen.
func ChosenParameterRefusal(name string) *Refusal {
	return &Refusal{
		SQLState: StateUnfenceable,
		Message:  fmt.Sprintf("fencepost.%s is that of the resource which the connection was opened with, and another one is chosen", ASCII(name)),
		Hint:     "RESET fencepost.resource first.",
		Usage:    true,
	}
}

// ChooseRefusal is the refusal of a resource that cannot be chosen in a session, only when
// connecting. why says what is particular about it.
func ChooseRefusal(resource, why string) *Refusal {
	return &Refusal{
		SQLState: StateUnfenceable,
		Message:  fmt.Sprintf("resource %s cannot be chosen by SET fencepost.resource: %s", strconv.QuoteToASCII(resource), why),
		Hint:     "Open a connection with this resource.",
		Usage:    true,
	}
}

// TooManyChosenRefusal is the refusal of a resource that a connection names beyond its limit.
func TooManyChosenRefusal(resource string, limit int) *Refusal {
	return &Refusal{
		SQLState: "53400",
		Message:  fmt.Sprintf("the connection cannot use resource %s: it has used %d others, and the limit is %d", strconv.QuoteToASCII(resource), limit, limit),
		Hint:     "Use another connection, or raise limits.resources_per_connection in Fencepost's configuration.",
		Usage:    true,
	}
}
