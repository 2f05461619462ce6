package oracle

import (
	"regexp"
	"strconv"
	"strings"
)

// The texts that the proxy puts in front of a client's, as they must look on the
// wire. A check in any other words is none.
const (
	readOnlyText = `SELECT pg_catalog.set_config('transaction_read_only','on',true)`
	// refusalText fails while it is analysed: its constant is no number.
	refusalText = `SELECT 'refused by Fencepost'::pg_catalog.int4`
)

const (
	number = `(\$\d|\d+)::pg_catalog\.int8`
	// literal is read alike under every setting and encoding: it is ASCII, and has
	// no backslash but in an E'' constant.
	literal  = `(?:'(?:[\x01-&(-\[\]-\x7F]|'')*'|E'(?:[\x01-&(-\[\]-\x7F]|''|\\\\|\\U[0-9A-F]{8})*')`
	checkSQL = `SELECT fencepost\.refuse\((\d+), ` + number + `, ` + literal + `, (` + literal + `), ` + number + `, false\)` +
		` WHERE \(fencepost\.current\(pg_catalog\.pg_sequence_last_value\('fencepost\.epoch_(\d+)'::pg_catalog\.regclass\), ` + number + `, ` + number + `\)` +
		`( AND pg_catalog\.current_setting\('transaction_isolation'\) OPERATOR\(pg_catalog\.=\) 'read committed')?\) IS NOT TRUE`
	lapseSQL = `SELECT fencepost\.refuse\(\d+, \d+::pg_catalog\.int8, ` + literal + `, ` + literal + `, \d+::pg_catalog\.int8, true\)`
)

var (
	checkPattern = regexp.MustCompile(`^` + checkSQL + `$`)
	lapsePattern = regexp.MustCompile(`^` + lapseSQL + `$`)
	// ours finds what the proxy may put into a text.
	ours = regexp.MustCompile(checkSQL + `|` + lapseSQL)
)

// checkText is a text that was recognized as a check.
type checkText struct {
	fence       string
	incarnation string // quoted
	// told and held are numbers or names of parameters.
	told, held string
	front      bool // without the isolation level: good with nothing in front of it
	never      bool // it refuses whatever the fence holds
}

// parseCheck recognizes a check by its whole text.
func parseCheck(text string) (c checkText, ok bool) {
	if lapsePattern.MatchString(text) {
		return checkText{never: true}, true
	}
	m := checkPattern.FindStringSubmatch(text)
	if m == nil {
		return c, false
	}
	fence, told, incarnation, held, sequence, isolation := m[1], m[2], m[3], m[4], m[5], m[8]
	if fence != sequence || m[6] != told || m[7] != held {
		return c, false
	}
	c = checkText{fence: fence, incarnation: incarnation, told: told, held: held, front: isolation == ""}
	return c, !c.front || told == held
}

// with puts parameters in the place of their names.
func (c checkText) with(params []string) checkText {
	value := func(s string) string {
		if len(s) == 2 && s[0] == '$' {
			if i := int(s[1] - '1'); i < len(params) {
				return params[i]
			}
			return "?"
		}
		return s
	}
	c.told, c.held = value(c.told), value(c.held)
	return c
}

// passes reports whether the check can pass at all: both epochs must be the same,
// and 0 is none.
func (c checkText) passes() bool { return c.told == c.held && c.told != "0" && !c.never }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// codePoint is an escaped character of an E” constant.
var codePoint = regexp.MustCompile(`\\\\|\\U[0-9A-F]{8}`)

// unquote is the value of a constant.
func unquote(constant string) string {
	body, escaped := strings.CutPrefix(constant, "E")
	body = strings.ReplaceAll(body[1:len(body)-1], "''", "'")
	if !escaped {
		return body
	}
	return codePoint.ReplaceAllStringFunc(body, func(s string) string {
		if s == `\\` {
			return `\`
		}
		n, _ := strconv.ParseInt(s[2:], 16, 32) // the pattern lets only such in
		return string(rune(n))
	})
}
