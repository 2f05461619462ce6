package oracle

import (
	"regexp"
	"strconv"
	"strings"
)

// The statements that the proxy injects, exactly as they must appear on the wire. A
// check in any other words does not count.
const (
	readOnlyText = `SELECT pg_catalog.set_config('transaction_read_only','on',true)`
	// refusalText fails during analysis, because its constant is not a number.
	refusalText = `SELECT 'refused by Fencepost'::pg_catalog.int4`
)

const (
	number = `(\$\d|\d+)::pg_catalog\.int8`
	// literal has the same meaning under every setting and encoding: it is ASCII, and
	// contains a backslash only in an E'' constant.
	literal  = `(?:'(?:[\x01-&(-\[\]-\x7F]|'')*'|E'(?:[\x01-&(-\[\]-\x7F]|''|\\\\|\\U[0-9A-F]{8})*')`
	checkSQL = `SELECT fencepost\.(?:refuse|(verdict))\((\d+), ` + number + `, ` + literal + `, (` + literal + `), ` + number + `, false\)` +
		` WHERE \(fencepost\.current\(pg_catalog\.pg_sequence_last_value\('fencepost\.epoch_(\d+)'::pg_catalog\.regclass\), ` + number + `, ` + number + `\)` +
		`(?: AND pg_catalog\.set_config\('fencepost\.claim_(\d+)', ` + number + `::pg_catalog\.text, true\) IS NOT NULL)?` +
		`( AND pg_catalog\.current_setting\('transaction_isolation'\) OPERATOR\(pg_catalog\.=\) 'read committed')?\) IS NOT TRUE`
	lapseSQL = `SELECT fencepost\.(?:refuse|(verdict))\(\d+, \d+::pg_catalog\.int8, ` + literal + `, ` + literal + `, \d+::pg_catalog\.int8, true\)`
)

var (
	checkPattern = regexp.MustCompile(`^` + checkSQL + `$`)
	claimPattern = regexp.MustCompile(`^SELECT pg_catalog\.set_config\('fencepost\.claim_\d+','\d+',false\)$`)
	lapsePattern = regexp.MustCompile(`^` + lapseSQL + `$`)
	// ours matches what the proxy may put into a text.
	ours = regexp.MustCompile(checkSQL + `|` + lapseSQL)
)

// checkText is a text that was recognised as a check.
type checkText struct {
	fence       string
	incarnation string // quoted
	// told and held are numbers or parameter names.
	told, held string
	front      bool // without the isolation level: valid only as the first statement
	never      bool // it refuses whatever the fence contains
	asks       bool // where it would refuse a stale session, it sets read-only mode instead
}

// parseCheck recognises a check by its whole text.
func parseCheck(text string) (c checkText, ok bool) {
	if m := lapsePattern.FindStringSubmatch(text); m != nil {
		return checkText{never: true, asks: m[1] != ""}, true
	}
	m := checkPattern.FindStringSubmatch(text)
	if m == nil {
		return c, false
	}
	asks, m := m[1] != "", m[1:]
	fence, told, incarnation, held, sequence, isolation := m[1], m[2], m[3], m[4], m[5], m[10]
	if fence != sequence || m[6] != told || m[7] != held || m[8] != "" && (m[8] != fence || m[9] != told) {
		return c, false
	}
	c = checkText{fence: fence, incarnation: incarnation, told: told, held: held, front: isolation == "", asks: asks}
	return c, !c.front || told == held
}

// with replaces the names of parameters by their values.
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

// passes reports whether the check can pass at all: both epochs must be equal and not
// 0.
func (c checkText) passes() bool { return c.told == c.held && c.told != "0" && !c.never }

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// codePoint matches an escaped character of an escape-string constant.
var codePoint = regexp.MustCompile(`\\\\|\\U[0-9A-F]{8}`)

// unquote returns the value of a constant.
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
		n, _ := strconv.ParseInt(s[2:], 16, 32) // the pattern guarantees that this parses
		return string(rune(n))
	})
}
