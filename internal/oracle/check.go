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
	choiceSQL = `SELECT \(COALESCE\(pg_catalog\.current_setting\('fencepost\.resource',true\),''\) OPERATOR\(pg_catalog\.\|\|\) ' is set'::pg_catalog\.text\)::pg_catalog\.bool` +
		` WHERE \(pg_catalog\.current_setting\('fencepost\.resource',true\) OPERATOR\(pg_catalog\.=\) (` + literal + `)::pg_catalog\.text` +
		`( OR COALESCE\(pg_catalog\.current_setting\('fencepost\.resource',true\),''\) OPERATOR\(pg_catalog\.=\) ''::pg_catalog\.text)?\) IS NOT TRUE`
	lapseSQL = `SELECT fencepost\.(?:refuse|(verdict))\(\d+, \d+::pg_catalog\.int8, ` + literal + `, ` + literal + `, \d+::pg_catalog\.int8, true\)`
)

var (
	checkPattern = regexp.MustCompile(`^` + checkSQL + `$`)
	claimPattern = regexp.MustCompile(`^SELECT pg_catalog\.set_config\('fencepost\.claim_\d+','\d+',false\)$`)
	lapsePattern = regexp.MustCompile(`^` + lapseSQL + `$`)
	// choicePattern matches the start of the checks of what was chosen, and onePattern one of them.
	choicePattern = regexp.MustCompile(`^` + choiceSQL)
	onePattern    = regexp.MustCompile(`^` + checkSQL)
	// ours matches what the proxy may put into a text.
	ours = regexp.MustCompile(checkSQL + `|` + lapseSQL + `|` + choiceSQL)
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
	chosen     bool // it is for what the client has chosen: the one of each resource, in order
	unchosen   bool // it is chosen, but for the resource of the startup: the server may have nothing chosen
	value      string
	each       []checkText
}

// candidacy is whom a check is for.
type candidacy struct{ fence, incarnation string }

// parseCheck recognises a check by its whole text.
func parseCheck(text string) (c checkText, ok bool) {
	if m := choicePattern.FindStringSubmatch(text); m != nil {
		c, ok = parseChosen(unquote(m[1]), text[len(m[0]):])
		c.unchosen = m[2] != ""
		return c, ok && (!c.unchosen || len(c.each) == 1)
	}
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

// parseChosen recognises the checks of what the client has chosen, in the order of their fences.
func parseChosen(value, text string) (c checkText, ok bool) {
	c = checkText{chosen: true, value: value}
	for text != "" {
		rest, joined := strings.CutPrefix(text, " UNION ALL ")
		one := onePattern.FindString(rest)
		if !joined || one == "" {
			return c, false
		}
		each, ok := parseCheck(one)
		if !ok || each.front || each.asks || each.never || strings.ContainsAny(each.told+each.held, "$") {
			return c, false
		}
		if last := len(c.each) - 1; last >= 0 && (len(each.fence) < len(c.each[last].fence) || len(each.fence) == len(c.each[last].fence) && each.fence <= c.each[last].fence) {
			return c, false
		}
		c.each, text = append(c.each, each), rest[len(one):]
	}
	return c, len(c.each) > 0
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

// agrees reports whether a check of what was chosen can pass where the server has this choice.
func (c checkText) agrees(choice string) bool {
	return c.value == choice || c.unchosen && choice == ""
}

// passes reports whether the check can pass at all: both epochs must be equal and not
// 0.
func (c checkText) passes() bool {
	for _, each := range c.each {
		if !each.passes() {
			return false
		}
	}
	return c.chosen || c.told == c.held && c.told != "0" && !c.never
}

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
