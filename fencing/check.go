package fencing

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Literal quotes s as an SQL string constant that has the same meaning under either
// setting of standard_conforming_strings and under every client_encoding. The result is
// ASCII; other characters are escaped by their code points. NUL bytes are dropped,
// because no text value in Postgres can hold one. Bytes that are not valid UTF-8 become
// U+FFFD.
func Literal(s string) string {
	var text strings.Builder
	escaped := false
	for _, r := range s {
		switch {
		case r == 0:
		case r == '\'':
			text.WriteString("''")
		case r == '\\':
			text.WriteString(`\\`)
			escaped = true
		case r < 0x80:
			text.WriteRune(r)
		default:
			fmt.Fprintf(&text, `\U%08X`, r)
			escaped = true
		}
	}
	if escaped {
		return "E'" + text.String() + "'"
	}
	return "'" + text.String() + "'"
}

// Name encodes a worker's name as fencepost.refuse expects it: unchanged if it is plain
// ASCII, otherwise as a JSON string in ASCII. Not every database can represent every
// character, and a check must not fail because of a name that only its error text would
// show.
func Name(worker string) string {
	plain := !strings.HasPrefix(worker, `"`)
	for _, r := range worker {
		plain = plain && r < 0x80
	}
	if plain {
		return worker
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(worker); err != nil { // cannot happen: every string can be encoded
		return `"?"`
	}
	var ascii strings.Builder
	for _, r := range strings.TrimSuffix(text.String(), "\n") {
		switch {
		case r < 0x7f:
			ascii.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	return ascii.String()
}

// CheckSQL returns the check that is injected at the start of every transaction. $1 is
// the epoch announced to the connection, $2 the epoch that its candidacy holds.
//
// The predicate is fencepost.current, which the registry and fencepost.refuse use too:
// both epochs must equal the sequence's value. So an epoch that a connection merely
// claims to know passes only if its candidacy holds it. Postgres inlines the function,
// so it costs no more than the written-out comparison.
//
// pg_sequence_last_value takes a RowExclusive lock on the sequence for the top-level
// transaction and reads its value without a snapshot. So a grant, which takes
// ShareRowExclusive by ALTER SEQUENCE … RESTART, waits for every transaction that was
// checked, and every check after a grant sees its epoch. The statement returns no row
// if the connection may go on. Otherwise fencepost.refuse raises the error; it also
// compares the fence's row, in case the snapshot is older than the grant. Operators are
// schema-qualified, so that a hostile search_path changes nothing.
//
// If claims is true, because the resource guards tables, a check that passes also sets the
// claim that their triggers look for, for its transaction. It is the epoch that the
// transaction was checked for, and goes with it.
func CheckSQL(fence int32, worker, incarnation string, claims bool) string {
	return checkSQL(refuse, fence, worker, incarnation, "$1", "$2", claim(fence, "$1", claims)+inReadCommitted)
}

// VerdictSQL returns the verdict, for a session whose stale writes are discarded:
// it returns no row if the connection may go on. If the candidacy had an epoch and was
// superseded, it makes the transaction read-only, warns, and returns one row. It raises
// whatever else the check raises. Its parameters are those of CheckSQL.
func VerdictSQL(fence int32, worker, incarnation string, claims bool) string {
	return checkSQL(verdict, fence, worker, incarnation, "$1", "$2", claim(fence, "$1", claims)+inReadCommitted)
}

// InlineVerdictSQL is to VerdictSQL what InlineCheckSQL is to CheckSQL.
func InlineVerdictSQL(fence int32, worker, incarnation string, claims bool, told, held Epoch) string {
	return inlineSQL(verdict, fence, worker, incarnation, claims, told, held)
}

// InlineCheckSQL returns the check with its parameters written into the text, for cases
// in which the prepared check may be gone.
func InlineCheckSQL(fence int32, worker, incarnation string, claims bool, told, held Epoch) string {
	return inlineSQL(refuse, fence, worker, incarnation, claims, told, held)
}

func inlineSQL(otherwise slowPath, fence int32, worker, incarnation string, claims bool, told, held Epoch) string {
	number := strconv.FormatInt(int64(told), 10)
	return checkSQL(otherwise, fence, worker, incarnation, number, strconv.FormatInt(int64(held), 10), claim(fence, number, claims)+inReadCommitted)
}

// FrontCheckSQL returns the check for a connection that was told the epoch e its
// candidacy holds, when nothing at all can precede it in its transaction. Its snapshot
// is then taken after the announcement in every isolation level, so the isolation level
// does not have to be tested. It has no parameters, which an EXECUTE in a text would
// have to evaluate: it costs the server two thirds of the full check.
func FrontCheckSQL(fence int32, worker, incarnation string, claims bool, e Epoch) string {
	number := strconv.FormatInt(int64(e), 10)
	return checkSQL(refuse, fence, worker, incarnation, number, number, claim(fence, number, claims))
}

// ClaimSQL returns the statement that claims an epoch for the session, for what runs
// without a check in front: a procedure that commits would lose the claim of a
// transaction.
func ClaimSQL(fence int32, e Epoch) string {
	return fmt.Sprintf("SELECT pg_catalog.set_config('fencepost.claim_%d','%d',false)", fence, e)
}

// claim sets the claim within a check, once the epochs have been compared. In front of the
// isolation level: those transactions write, too, if fencepost.refuse finds nothing.
func claim(fence int32, told string, claims bool) string {
	if !claims {
		return ""
	}
	return fmt.Sprintf(` AND pg_catalog.set_config('fencepost.claim_%d', %s::pg_catalog.int8::pg_catalog.text, true) IS NOT NULL`, fence, told)
}

// SequenceName returns the name of a fence's sequence.
func SequenceName(fence int32) string { return fmt.Sprintf("fencepost.epoch_%d", fence) }

// inReadCommitted directs every other isolation level to fencepost.refuse, which tests
// whether the snapshot has seen the grant.
const inReadCommitted = ` AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'`

// slowPath is the function that a check calls if the fast comparison fails.
type slowPath string

const (
	refuse  slowPath = "refuse"  // raises an error, or finds that all is well
	verdict slowPath = "verdict" // for a superseded candidacy, returns a row instead
)

func checkSQL(otherwise slowPath, fence int32, worker, incarnation, told, held, more string) string {
	return fmt.Sprintf(`SELECT fencepost.%[7]s(%[1]d, %[2]s::pg_catalog.int8, %[3]s, %[4]s, %[5]s::pg_catalog.int8, false)`+
		` WHERE (fencepost.current(pg_catalog.pg_sequence_last_value('fencepost.epoch_%[1]d'::pg_catalog.regclass),`+
		` %[2]s::pg_catalog.int8, %[5]s::pg_catalog.int8)%[6]s) IS NOT TRUE`,
		fence, told, Literal(Name(worker)), Literal(incarnation), held, more, otherwise)
}

// foreignSQL fails if the schema belongs to a role that lacks a right of every control role. Whoever uses the schema
// then runs what that role has put there (see package owner).
const foreignSQL = `SELECT FROM pg_catalog.pg_namespace n WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost' AND CASE WHEN n.nspname OPERATOR(pg_catalog.=) 'fencepost'` +
	` AND NOT pg_catalog.pg_has_role(n.nspowner, 'pg_signal_backend', 'USAGE')` +
	` THEN 1 OPERATOR(pg_catalog./) (pg_catalog.length(n.nspname::pg_catalog.text) OPERATOR(pg_catalog.-) 9) OPERATOR(pg_catalog.=) 0 ELSE false END`

// TrialSQL returns statements that have no effect, and fail if the schema is not Fencepost's, if what every check calls is missing, or if the role
// may not execute it. discards adds what a verdict calls.
func TrialSQL(discards bool) string {
	const arguments = `0, 0::pg_catalog.int8, '', '', 0::pg_catalog.int8, false`
	text := `SELECT fencepost.current(0::pg_catalog.int8, 0::pg_catalog.int8, 0::pg_catalog.int8), fencepost.refuse(` + arguments + `)`
	if discards {
		text += `, fencepost.undone(), fencepost.verdict(` + arguments + `)`
	}
	return foreignSQL + `;` + text + ` WHERE false`
}

// RefuseSQL returns the statement that refuses whatever follows it. lapsed says that
// the connection's lease is not confirmed.
func RefuseSQL(fence int32, worker, incarnation string, told, held Epoch, lapsed bool) string {
	return slowSQL(refuse, fence, worker, incarnation, told, held, lapsed)
}

// LapsedVerdictSQL is to VerdictSQL what RefuseSQL is to CheckSQL, for a connection whose
// lease is not confirmed: it never returns without a row.
func LapsedVerdictSQL(fence int32, worker, incarnation string, told, held Epoch) string {
	return slowSQL(verdict, fence, worker, incarnation, told, held, true)
}

func slowSQL(path slowPath, fence int32, worker, incarnation string, told, held Epoch, lapsed bool) string {
	return fmt.Sprintf(`SELECT fencepost.%s(%d, %d::pg_catalog.int8, %s, %s, %d::pg_catalog.int8, %t)`,
		path, fence, told, Literal(Name(worker)), Literal(incarnation), held, lapsed)
}

// ReadOnlySQL is injected in front of the reads of a connection that does not lead. As
// the transaction's first query it cannot be undone within that transaction on
// PostgreSQL 16 and later; on 14 and 15, RESET transaction_read_only undoes it.
const ReadOnlySQL = `SELECT pg_catalog.set_config('transaction_read_only','on',true)`

// DiscardedSQL runs in the place of a write that is discarded. It returns no row. If the
// transaction is not read-only any more, which a function can bring about before PostgreSQL
// 16, it raises ZF001, so that what was written is rolled back.
const DiscardedSQL = `SELECT fencepost.undone() WHERE pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'off'`
