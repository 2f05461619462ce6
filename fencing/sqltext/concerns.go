package sqltext

import "bytes"

const prepare, transaction, fence = "prepare", "transaction", "fencepost"

// ConcernsFencepost reports whether a text may show or set a parameter of Fencepost's, or may prepare a
// transaction for a two-phase commit, which outlives its backend. Only such a text of a relayed session is analyzed.
func ConcernsFencepost(text []byte) bool {
	lone := false // no "transaction" follows the first "prepare"
	for rest := text; ; {
		i := bytes.IndexAny(rest, "fFpP")
		if i < 0 {
			return false
		}
		rest = rest[i:]
		if startsFold(rest, fence) {
			return true
		}
		if !lone && startsFold(rest, prepare) {
			if containsFold(rest[len(prepare):], transaction) {
				return true
			}
			lone = true
		}
		rest = rest[1:]
	}
}

// PreparesTransaction reports whether a text may have a PREPARE TRANSACTION, whatever the settings are by which the
// server reads it: these words, with nothing but space and comments between them.
func PreparesTransaction(text []byte) bool {
	for rest := text; len(rest) > 0; rest = rest[1:] {
		if startsFold(rest, prepare) && startsFold(skipBlank(rest[len(prepare):]), transaction) {
			return true
		}
	}
	return false
}

// skipBlank returns b without the space and the comments at its start, as Postgres reads them: a line ends with CR,
// too, and comments nest.
func skipBlank(b []byte) []byte {
	for {
		b = bytes.TrimLeft(b, " \t\n\r\f\v")
		switch {
		case bytes.HasPrefix(b, []byte("--")):
			end := bytes.IndexAny(b, "\n\r")
			if end < 0 {
				return nil
			}
			b = b[end:]
		case bytes.HasPrefix(b, []byte("/*")):
			b = skipComment(b)
		default:
			return b
		}
	}
}

// skipComment returns what follows the comment at the start of b, nil if it has no end.
func skipComment(b []byte) []byte {
	for depth := 0; len(b) >= 2; {
		switch {
		case bytes.HasPrefix(b, []byte("/*")):
			depth, b = depth+1, b[2:]
		case bytes.HasPrefix(b, []byte("*/")):
			if depth, b = depth-1, b[2:]; depth == 0 {
				return b
			}
		default:
			b = b[1:]
		}
	}
	return nil
}

// MayChoose reports whether a text that cannot be read may set fencepost.resource or fencepost.token.
func MayChoose(text []byte) bool {
	return containsFold(text, fence) && (containsFold(text, "resource") || containsFold(text, "token"))
}

// MayReset reports whether a text may have a RESET or DISCARD.
func MayReset(text []byte) bool { return containsFold(text, "reset") || containsFold(text, "discard") }

// MayExecute reports whether a text may have an EXECUTE.
func MayExecute(text []byte) bool { return containsFold(text, "execute") }

// MayChangeReading reports whether a statement of the session may change how the server reads a text: its
// client_encoding, or standard_conforming_strings.
func MayChangeReading(text []byte) bool {
	for _, word := range []string{"conforming", "encoding", "names", "reset", "discard", "config"} {
		if containsFold(text, word) {
			return true
		}
	}
	return false
}

// equalFold reports whether b is word, which is in lower case and has only letters, in letters of either case.
func equalFold(b []byte, word string) bool { return len(b) == len(word) && startsFold(b, word) }

// startsFold reports whether b starts with word, which is in lower case and has only letters, in letters of either
// case.
func startsFold(b []byte, word string) bool {
	if len(b) < len(word) {
		return false
	}
	for i := range len(word) {
		if b[i]|0x20 != word[i] {
			return false
		}
	}
	return true
}

// containsFold reports whether b contains word, which is in lower case and has only letters, in letters of either case.
func containsFold(b []byte, word string) bool {
	for i := 0; i+len(word) <= len(b); i++ {
		if b[i]|0x20 == word[0] && startsFold(b[i:], word) {
			return true
		}
	}
	return false
}
