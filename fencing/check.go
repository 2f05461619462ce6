package fencing

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
)

// Literal quotes s as an SQL string constant that means the same under either
// setting of standard_conforming_strings and every client_encoding: it is ASCII,
// other characters are escaped by their code points. NUL bytes are dropped, since
// no text of Postgres can hold one; bytes that are no UTF-8 become U+FFFD.
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

// Name gives a worker's name as fencepost.refuse takes it: as it is if it is plain,
// else as a JSON string of ASCII characters. Not every database can hold every
// character, and a check must not fail for what only its error would show.
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
	if err := encoder.Encode(worker); err != nil { // a string always can be encoded
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

// CheckSQL is the text of the check that stands in front of every transaction.
// $1 is the epoch the connection was told, $2 the epoch its candidacy holds.
//
// The predicate is fencepost.current, which the registry and fencepost.refuse use
// too: both epochs must be the sequence's value, so an epoch that a connection
// only claims to know, but that its candidacy does not hold, passes nothing.
// Postgres puts the function's body in the place of its call, so it costs what
// the written out comparison costs.
//
// pg_sequence_last_value locks the sequence in RowExclusive mode for the top
// transaction and reads its value without a snapshot, so a grant (which takes
// ShareRowExclusive by ALTER SEQUENCE … RESTART) waits for every transaction
// that was checked, and every check behind a grant sees its epoch. It returns
// no row when the connection may go on; all else is told by fencepost.refuse,
// which also compares the row under snapshots older than the grant. Operators
// are qualified: a hostile search_path changes nothing.
func CheckSQL(fence int32, worker, incarnation string) string {
	return checkSQL(fence, worker, incarnation, "$1", "$2", inReadCommitted)
}

// InlineCheckSQL is the check with its parameters in place, for where the
// prepared one may be gone.
func InlineCheckSQL(fence int32, worker, incarnation string, told, held Epoch) string {
	return checkSQL(fence, worker, incarnation, strconv.FormatInt(int64(told), 10), strconv.FormatInt(int64(held), 10), inReadCommitted)
}

// FrontCheckSQL is the check for a connection that was told what its candidacy
// holds, $1, where nothing at all can stand in front of it in its transaction:
// then its snapshot is taken behind the reply that told, in any isolation level,
// and need not be asked for. It costs the server two thirds of the whole.
func FrontCheckSQL(fence int32, worker, incarnation string) string {
	return checkSQL(fence, worker, incarnation, "$1", "$1", "")
}

// inReadCommitted sends every other isolation level to fencepost.refuse, which
// looks whether the snapshot has seen the grant.
const inReadCommitted = ` AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'`

func checkSQL(fence int32, worker, incarnation, told, held, more string) string {
	return fmt.Sprintf(`SELECT fencepost.refuse(%[1]d, %[2]s::pg_catalog.int8, %[3]s, %[4]s, %[5]s::pg_catalog.int8, false)`+
		` WHERE (fencepost.current(pg_catalog.pg_sequence_last_value('fencepost.epoch_%[1]d'::pg_catalog.regclass),`+
		` %[2]s::pg_catalog.int8, %[5]s::pg_catalog.int8)%[6]s) IS NOT TRUE`,
		fence, told, Literal(Name(worker)), Literal(incarnation), held, more)
}

// RefuseSQL is the text that refuses whatever follows it, for a connection
// whose lease is not confirmed (lapsed).
func RefuseSQL(fence int32, worker, incarnation string, told, held Epoch, lapsed bool) string {
	return fmt.Sprintf(`SELECT fencepost.refuse(%d, %d::pg_catalog.int8, %s, %s, %d::pg_catalog.int8, %t)`,
		fence, told, Literal(Name(worker)), Literal(incarnation), held, lapsed)
}

// ReadOnlySQL is what stands in front of the reads of those who do not lead.
// As the transaction's first query it cannot be undone inside it on PostgreSQL
// 16 and later; on 14 and 15 RESET transaction_read_only undoes it.
const ReadOnlySQL = `SELECT pg_catalog.set_config('transaction_read_only','on',true)`
