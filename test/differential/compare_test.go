package differential

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/fencepost/fencepost/internal/wiretest"
)

// refusedEarlier reports whether got is 25P02 where Postgres found another fault in a
// message first, although its transaction had failed too: a name that does not exist,
// or a text that cannot be parsed. The check that is injected before the proxy knows
// that the transaction has failed is refused for that reason alone. Nothing would have
// run in either case.
func refusedEarlier(want []string, got string) bool {
	if !strings.HasPrefix(want[0], "ErrorResponse ERROR ") || !strings.HasPrefix(got, "ErrorResponse ERROR "+failedTransaction) {
		return false
	}
	for _, l := range want {
		if strings.HasPrefix(l, "ReadyForQuery ") {
			return l == "ReadyForQuery E"
		}
	}
	return true
}

// answersInFailed reports whether Postgres answers the Execute of a portal whose Bind has
// failed, or describes a statement that returns no rows, in a block that has failed, and
// Fencepost returns 25P02. The first such Execute of a batch waits for what came before it; the
// proxy does not know what it may have ended, and so puts a check in front of the second. It
// puts one in front of a Describe as well, if it does not know yet that the block has failed.
func answersInFailed(want []string, got string) bool {
	if name, _, _ := strings.Cut(want[0], " "); name != "EmptyQueryResponse" && name != "ParameterDescription" ||
		!strings.HasPrefix(got, "ErrorResponse ERROR "+failedTransaction) {
		return false
	}
	ready := slices.IndexFunc(want, func(l string) bool { return strings.HasPrefix(l, "ReadyForQuery ") })
	return ready < 0 || want[ready] == "ReadyForQuery E"
}

// lacksPortal reports whether got misses the unnamed portal where Postgres returns
// 25P02, or describes it. A Query that fails leaves its portal behind, while one that is sent
// as extended messages has no such portal. In a failed transaction neither runs.
func lacksPortal(want []string, got string) bool {
	ready := slices.IndexFunc(want, func(l string) bool { return strings.HasPrefix(l, "ReadyForQuery ") })
	failed := strings.HasPrefix(want[0], "ErrorResponse ERROR "+failedTransaction) || ready > 0 && want[ready] == "ReadyForQuery E"
	return failed && strings.HasPrefix(got, `ErrorResponse ERROR 34000 "portal \"\" does not exist`)
}

// refusedOnce reports whether PostgreSQL 18 refuses an injected message, and Postgres the
// client's own. After a Query in a batch that has executed something, it refuses the next
// message once, whatever it is.
func refusedOnce(want, got string) bool {
	return strings.Contains(got, `XX000 "StartTransactionCommand: unexpected state`) && strings.HasPrefix(want, "ErrorResponse ERROR ")
}

// seemsToImport reports whether got refuses a text that fails, because of its words:
// Fencepost cannot read it, or not yet.
func seemsToImport(want, got string) bool {
	return strings.HasPrefix(want, "ErrorResponse ERROR ") && strings.HasPrefix(got, "ErrorResponse ERROR ZF005 ") && strings.Contains(got, "may have imported a snapshot")
}

// refusesWhole reports whether got refuses a whole text, for the reason of seemsToImport, of which
// a later statement fails in Postgres. Postgres runs those before that one.
func refusesWhole(want []string, got string) bool {
	ready := slices.IndexFunc(want, func(l string) bool { return strings.HasPrefix(l, "ReadyForQuery ") })
	return ready > 0 && seemsToImport(want[ready-1], got)
}

// inPipeline reports whether l refuses a statement that cannot run in a pipeline, or a
// COMMIT in a procedure that is called in one. PostgreSQL 18 calls a pipeline a transaction
// block. Such a statement follows the check, which was executed, while the client's own statement
// in the same batch was bound but not executed. A Sync between them would end the
// client's portal.
func inPipeline(l string) bool {
	return strings.HasPrefix(l, "ErrorResponse ERROR 25001 ") && strings.Contains(l, "cannot be executed within a pipeline") ||
		strings.HasPrefix(l, `ErrorResponse ERROR 25001 "DISCARD ALL cannot run inside a transaction block"`) ||
		strings.HasPrefix(l, `ErrorResponse ERROR 25001 "ALTER SYSTEM cannot run inside a transaction block"`) ||
		strings.HasPrefix(l, `ErrorResponse ERROR 2D000 "invalid transaction termination"`)
}

// outsideABlock reports whether l refuses a DECLARE or LOCK TABLE outside a block. On 18, a check that was executed
// in front of another message of the batch has made a block of it, so it is not refused, and no error shows the replies
// that nobody has asked for.
func outsideABlock(l string) bool {
	return strings.HasPrefix(l, `ErrorResponse ERROR 25P01 "DECLARE CURSOR can only`) || strings.HasPrefix(l, `ErrorResponse ERROR 25P01 "LOCK TABLE can only`)
}

// copiesByRow reports whether both refuse a COPY, of rows into a guarded table. Where a
// table has a trigger that fires before each row, Postgres writes the rows one by one
// instead of many at once, and so finds another fault first, or names another row.
func (o *outcome) copiesByRow(want, got string) bool {
	inCopy := func(l string) bool {
		return strings.HasPrefix(l, "ErrorResponse ERROR ") && strings.Contains(l, ` W="COPY `)
	}
	return o.in.guards != "" && inCopy(want) && inCopy(got)
}

// unclaimed reports whether a leader was refused for want of a claim where docs/guards.md
// says so: in a text that could not be read in time and ends a transaction, and in a CALL
// or DO behind other messages of its batch, one of which may have reset the claim.
func unclaimed(s script, got []wiretest.Message) bool {
	refused := slices.ContainsFunc(lines(got), func(l string) bool { return strings.HasPrefix(l, `ErrorResponse ERROR ZF002 "table `) })
	has := func(re *regexp.Regexp) bool {
		return slices.ContainsFunc(s.steps, func(st step) bool { return re.MatchString(st.String()) })
	}
	return refused && (has(endsInText) || has(parsesCall) && has(mayReset))
}

var (
	endsInText = regexp.MustCompile(`(?i)^Query .*\b(rollback|abort|commit|end)\b.*;`)
	parsesCall = regexp.MustCompile(`(?i)^Parse .*\b(call|do)\b`)
	mayReset   = regexp.MustCompile(`(?i)\b(reset|discard|rollback|abort|execute)\b`)
)

// notAlone reports whether both refuse a statement that must stand alone. EXECUTE counts
// as a function there, and Postgres looks first whether something precedes it.
func notAlone(want, got string) bool {
	return strings.HasPrefix(want, "ErrorResponse ERROR 25001 ") && strings.Contains(want, "cannot be executed from a function") &&
		strings.HasPrefix(got, "ErrorResponse ERROR 25001 ") && strings.Contains(got, "cannot run inside a transaction block")
}

// onlyAnswers reports whether the messages end with replies that need not arrive before
// a Sync.
func onlyAnswers(all []wiretest.Message) bool {
	return len(all) > 0 && strings.IndexByte("123nTtDCsI", all[len(all)-1].Type) >= 0
}

// difference says where Fencepost's output differs from Postgres' output, "" if it does
// not.
func difference(want, got *outcome) (string, error) {
	d, tolerated := saidOtherwise(want, got)
	switch {
	case tolerated: // the messages that the script waits for need not arrive
		return "", nil
	case d != "":
		return d + got.stuck, nil
	}
	if w, g := lines(want.others), lines(got.others); !slices.Equal(w, g) {
		return fmt.Sprintf("of other sessions it is notified otherwise:\nPostgres: %q\nFencepost: %q%s", w, g, got.stuck), nil
	}
	if !slices.Equal(want.heard, got.heard) {
		return fmt.Sprintf("other sessions are notified otherwise:\nPostgres: %q\nFencepost: %q", want.heard, got.heard), nil
	}
	if want.end == "" && got.end != "" {
		return "the connection ends otherwise: " + got.end + got.stuck, nil
	}
	return wroteOtherwise(want, got)
}

// isCancelled reports whether a line is the error of a statement that was cancelled, for whatever cause.
func isCancelled(line string) bool {
	return strings.HasPrefix(line, `ErrorResponse ERROR 57014 "canceling statement due to `)
}

// wroteOtherwise compares the databases.
func wroteOtherwise(want, got *outcome) (string, error) {
	if want.in != got.in && (want.contents.rows == nil || got.contents.rows == nil) {
		for _, o := range []*outcome{want, got} {
			if err := o.in.lookAtAll(); err != nil {
				return "", err
			}
			o.contents = o.in.now
		}
	}
	if want.contents.like(got.contents) {
		return "", nil
	}
	return "the database differs:\nPostgres:\n" + want.contents.String() + "\nFencepost:\n" + got.contents.String(), nil
}

// saysOtherwise says that the message of an index differs.
const saysOtherwise = "message %d:\n  Postgres  %s\n  Fencepost %s"

// unexpectedState reports whether l is an error of PostgreSQL 18 that says that a Query
// behind an unsynced batch found its transaction begun. With a check in front it may come
// one of the client's messages later.
func unexpectedState(l string) bool {
	return strings.Contains(l, "XX000 \"") && strings.Contains(l, ": unexpected state ")
}

// mustBeFirst matches what SET TRANSACTION says after a query.
var mustBeFirst = regexp.MustCompile(`must be (called|set) before any query`)

// saidOtherwise compares the transcripts. tolerated means that they differ in a known
// way, so that what follows cannot be compared.
func saidOtherwise(want, got *outcome) (diff string, tolerated bool) {
	if slices.EqualFunc(want.all, got.all, func(a, b wiretest.Message) bool { return a.Type == b.Type && bytes.Equal(a.Body, b.Body) }) {
		return "", false
	}
	w, g := lines(want.all), lines(got.all)
	sortParameters(w)
	sortParameters(g)
	if got.keepsText {
		w, g = withoutPrefix(w), withoutPrefix(g)
	}
	for i := range max(len(w), len(g)) {
		switch {
		case i == len(w) && want.end == "broken off":
			// Postgres closed the connection with unread bytes of the client, and the
			// resulting reset may overtake its last messages.
			return "", true
		case i >= len(w) && strings.HasPrefix(g[i], "ErrorResponse ERROR "+failedTransaction) && i == len(g)-1:
			return "", false // as in refusedEarlier, and Postgres replies without flushing
		case i >= len(w) && i > 0 && i == len(g)-1 && w[i-1] == "ReadyForQuery E" && lacksPortal([]string{"ErrorResponse ERROR " + failedTransaction}, g[i]):
			return "", false // a Describe of the portal, which Postgres answers without flushing
		case i >= len(w) && got.unasked && inPipeline(g[len(g)-1]):
			return "", true
		case i >= len(w) && got.unasked && onlyAnswers(got.all):
			return "", false // Postgres holds back a reply that nobody asked for; a Sync of Fencepost's flushes it
		case i >= len(w):
			return fmt.Sprintf("Fencepost goes on with\n  %s", g[i]), false
		case i >= len(g) && got.unasked && slices.ContainsFunc(w[i:], outsideABlock):
			return "", true
		case i >= len(g):
			return fmt.Sprintf("Fencepost leaves out\n  %s\n  (its end: %q)", w[i], got.end), false
		case g[i] != w[i] && isCancelled(g[i]) && isCancelled(w[i]):
			// Whether a cancel request or the statement_timeout comes first depends on time.
			return "", true
		case strings.HasPrefix(g[i], "ErrorResponse ERROR 25001 ") && mustBeFirst.MatchString(g[i]) && g[i] != w[i]:
			// LOCK, NOTIFY and similar statements take no snapshot, so Postgres allows
			// SET TRANSACTION after them. They can wait for locks and write, so a check
			// precedes them, and that is a query.
			return "", true
		case inPipeline(g[i]) && g[i] != w[i], answersInFailed(w[i:], g[i]), !strings.HasPrefix(w[i], "ErrorResponse ") && lacksPortal(w[i:], g[i]):
			return "", true
		case i+1 < len(w) && strings.HasPrefix(w[i], "NoticeResponse ") && strings.HasPrefix(w[i+1], "ErrorResponse ERROR ") && strings.HasPrefix(g[i], "ErrorResponse ERROR "+failedTransaction):
			return "", true // as in refusedEarlier, of a statement that would have warned first
		case unexpectedState(w[i]) && w[i] != g[i], got.copiesByRow(w[i], g[i]) && w[i] != g[i], !strings.HasPrefix(w[i], "ErrorResponse ") && refusesWhole(w[i:], g[i]):
			return "", true
		case outsideABlock(w[i]) && strings.HasPrefix(g[i], "CommandComplete "):
			return "", true
		case refusedOnce(w[i], g[i]):
		case w[i] != g[i] && !refusedEarlier(w[i:], g[i]) && !lacksPortal(w[i:], g[i]) && !notAlone(w[i], g[i]) && !seemsToImport(w[i], g[i]):
			return fmt.Sprintf(saysOtherwise, i, w[i], g[i]), false
		}
	}
	return "", false
}

// sortParameters sorts reports of several settings at the same time. Postgres reports
// them in the order in which they were first used, and the check may use one.
func sortParameters(lines []string) {
	for i := 0; i < len(lines); i++ {
		from := i
		for i < len(lines) && strings.HasPrefix(lines[i], "ParameterStatus ") {
			i++
		}
		slices.Sort(lines[from:i])
	}
}

// kept matches what is injected in front of a text of several statements. The server
// keeps the whole text for those that PREPARE and DECLARE create, and positions refer
// to it.
var kept = regexp.MustCompile(`EXECUTE fencepost_check_[0-9a-z]+_[0-9a-z_]+(\([0-9,]+\))?;|SELECT fencepost\.refuse\(.*?IS NOT TRUE;| P="[0-9]+"`)

func withoutPrefix(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = kept.ReplaceAllString(l, "")
	}
	return out
}
