package fencing

import (
	"encoding/json"
	"fmt"
	"strings"
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
// character, and a registration must not fail because of a name that only its error text
// would show.
func Name(worker string) string {
	plain := !strings.HasPrefix(worker, `"`)
	for _, r := range worker {
		plain = plain && r < 0x80
	}
	if plain {
		return worker
	}
	return Quoted(worker)
}

// Quoted quotes a name as fencepost.quoted does: as a JSON string in ASCII.
func Quoted(name string) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(name); err != nil { // cannot happen: every string can be encoded
		return `"?"`
	}
	return ASCII(strings.TrimSuffix(text.String(), "\n"))
}
