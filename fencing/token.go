package fencing

import (
	"fmt"
	"strconv"
)

// tokenOf returns the generation and the token of an incarnation that TokenIncarnation made.
func tokenOf(incarnation string) (generation, token int64, ok bool) {
	n, err := fmt.Sscanf(incarnation, SourceToken+":%d:%d", &generation, &token)
	return generation, token, n == 2 && err == nil
}

// TokenRule says what ParseToken takes.
const TokenRule = "Use the token that the application's elector gave: an integer from 1 to 9223372036854775807."

// ParseToken reads the value of fencepost.token. ok is false if it is no token.
func ParseToken(value string) (token int64, ok bool) {
	token, err := strconv.ParseInt(value, 10, 64)
	return token, err == nil && token > 0
}

// SetTokenRefusal returns the refusal of a SET fencepost.token for what follows from the
// statement alone; nil if there is none. local says that it is SET LOCAL.
func SetTokenRefusal(value string, local bool) *Refusal {
	if local {
		return &Refusal{
			SQLState: StateCannotChange,
			Message:  `parameter "fencepost.token" cannot be set for a single transaction`,
			Hint:     "Use SET without LOCAL, outside a transaction: the token then counts until the connection ends or sets another one.",
			Usage:    true,
		}
	}
	if _, ok := ParseToken(value); !ok {
		return &Refusal{
			SQLState: "22023",
			Message:  fmt.Sprintf(`invalid value for parameter "fencepost.token": %q`, ASCII(value)),
			Hint:     TokenRule,
			Usage:    true,
		}
	}
	return nil
}

// TokenInTransactionRefusal is the refusal of a SET fencepost.token that shares a transaction with
// other statements.
var TokenInTransactionRefusal = &Refusal{
	SQLState: "25001", // active_sql_transaction
	Message:  "SET fencepost.token cannot run inside a transaction, or together with other statements",
	Hint:     "Send it alone, before BEGIN: it begins another candidacy, and each transaction belongs to one.",
	Usage:    true,
}

// bumpTokens is how an operator lets lower tokens pass again.
const bumpTokens = `If the recorded token is too high by mistake, or the elector counts from the beginning again: stop all workers that have brought it, then run: fencepost generation bump --tokens --database DATABASE`

// LowerToken returns the refusal of a candidacy whose token is lower than that of the record, or
// of an earlier generation than that; nil if it is neither, or has no token. A token that was
// recorded before an operator took the lead from its worker counts as well.
func LowerToken(resource, worker, incarnation string, rec Record) *Refusal {
	generation, token, ok := tokenOf(incarnation)
	if !ok || generation > rec.Generation || generation == rec.Generation && token >= rec.Index {
		return nil
	}
	r := &Refusal{
		SQLState: StateSuperseded,
		Message: fmt.Sprintf("worker %s does not lead resource %s: its token %d is lower than the recorded token %d, under which %s has epoch %d",
			strconv.QuoteToASCII(worker), strconv.QuoteToASCII(resource), token, rec.Index, holderText(rec.Worker), rec.Epoch),
		Detail: Detail(map[string]any{
			"resource": resource, "worker": worker, "incarnation": incarnation, "epoch": 0, "token": token,
			"current_epoch": rec.Epoch, "current_worker": rec.Worker, "current_token": rec.Index,
		}),
		Hint: "Stop what this worker was doing: another one was elected after it. " + bumpTokens,
	}
	if generation < rec.Generation {
		r.Message = fmt.Sprintf("worker %s does not lead resource %s: its token %d is of generation %d, and the recorded award %d is of generation %d",
			strconv.QuoteToASCII(worker), strconv.QuoteToASCII(resource), token, generation, rec.Index, rec.Generation)
	}
	return r
}

// TokenJump is the refusal of a token that exceeds the recorded one by more than a configured
// maximum.
func TokenJump(resource string, token, recorded, most int64) *Refusal {
	return &Refusal{
		SQLState: StateAwardNotNewer,
		Message: fmt.Sprintf("token %d of resource %s exceeds the recorded token %d by more than %d (resources.<name>.max_jump)",
			token, strconv.QuoteToASCII(resource), recorded, most),
		Detail: Detail(map[string]any{"resource": resource, "token": token, "current_token": recorded, "max_jump": most}),
		Hint:   `If the token is right, raise max_jump, or run fencepost generation bump --tokens --database DATABASE. Otherwise correct the token.`,
	}
}
