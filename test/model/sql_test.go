package model

import (
	"regexp"
	"strings"
)

// verb is what a statement does to the model server.
type verb uint8

const (
	syntaxError verb = iota // the server runs nothing of the text that holds it
	theCheck
	theVerdict
	theRefusal  // fails when it is run
	runsNothing // in the place of a write that is discarded
	readOnlyMode
	failsEarly // fails when it is analysed
	failsLate  // fails when it is run
	failsAtEnd // writes, and fails at the end of its transaction
	begins
	commits
	rollsBack
	twoPhases
	endsPrepared
	savepoints
	releases
	rollsBackTo
	setsStrings // standard_conforming_strings
	resetsReadOnly
	sets
	shows
	listens
	discards
	deallocates
	prepares
	executes
	locks
	alone // VACUUM
	commitsInside
	copiesIn
	copiesOut
	declares
	fetches
	closesCursor
	deallocatesHidden // a function that runs DEALLOCATE ALL
	selectsMany
	selects
	writes
)

// statement is one statement as the model server reads it.
type statement struct {
	verb verb
	text string
	arg  string // a name, a value or a text
	args string // of EXECUTE
	also bool   // AND CHAIN, or WITH HOLD
	num  checkNumbers
}

// checkNumbers are the parameters of a check: constants, or $1 and $2.
type checkNumbers struct{ told, held string }

// forms are the statements that the model server knows, in lower case, the first that
// matches. Its first group is the argument, the second what "also" stands for.
var forms = []struct {
	re   *regexp.Regexp
	verb verb
}{
	{regexp.MustCompile(`^select fencepost\.refuse\(\d+, (\S+)::pg_catalog\.int8, .*, (\S+)::pg_catalog\.int8, false\) where `), theCheck},
	{regexp.MustCompile(`^select fencepost\.verdict\(\d+, (\S+)::pg_catalog\.int8, .*, (\S+)::pg_catalog\.int8, false\) where `), theVerdict},
	{regexp.MustCompile(`^select fencepost\.(?:refuse|verdict)\(`), theRefusal},
	{regexp.MustCompile(`^select fencepost\.undone\(\) where `), runsNothing},
	{regexp.MustCompile(`^select 'refused by fencepost'::pg_catalog\.int4$`), failsEarly},
	{regexp.MustCompile(`^select pg_catalog\.set_config\('transaction_read_only','on',true\)$`), readOnlyMode},
	{regexp.MustCompile(`^select nothing$`), failsEarly},
	{regexp.MustCompile(`^select 1/0$`), failsLate},
	{regexp.MustCompile(`^insert into deferred `), failsAtEnd},
	{regexp.MustCompile(`^(?:begin|start transaction)(?: .*)?$`), begins},
	{regexp.MustCompile(`^(?:commit|end)()( and chain)?$`), commits},
	{regexp.MustCompile(`^(?:rollback|abort)()( and chain)?$`), rollsBack},
	{regexp.MustCompile(`^prepare transaction '`), twoPhases},
	{regexp.MustCompile(`^(?:commit|rollback) prepared '`), endsPrepared},
	{regexp.MustCompile(`^savepoint (\w+)$`), savepoints},
	{regexp.MustCompile(`^release (?:savepoint )?(\w+)$`), releases},
	{regexp.MustCompile(`^rollback to (?:savepoint )?(\w+)$`), rollsBackTo},
	{regexp.MustCompile(`^set standard_conforming_strings (?:=|to) (\w+)$`), setsStrings},
	{regexp.MustCompile(`^reset transaction_read_only$`), resetsReadOnly},
	{regexp.MustCompile(`^(?:set constraints|lock) `), locks},
	{regexp.MustCompile(`^(?:set|reset) `), sets},
	{regexp.MustCompile(`^show (.+)$`), shows},
	{regexp.MustCompile(`^(?:un)?listen `), listens},
	{regexp.MustCompile(`^discard all$`), discards},
	{regexp.MustCompile(`^deallocate (\w+)$`), deallocates},
	{regexp.MustCompile(`^prepare (\w+) as `), prepares},
	{regexp.MustCompile(`^execute (\w+)(?: ?\(.*\))?$`), executes},
	{regexp.MustCompile(`^(?:vacuum|create index concurrently|reindex \(concurrently\)) ?`), alone},
	{regexp.MustCompile(`^(?:do|call) `), commitsInside},
	{regexp.MustCompile(`^copy \w+ from stdin$`), copiesIn},
	{regexp.MustCompile(`^copy .* to stdout$`), copiesOut},
	{regexp.MustCompile(`^declare (\w+) cursor( with hold)? for `), declares},
	{regexp.MustCompile(`^fetch (\w+)$`), fetches},
	{regexp.MustCompile(`^close (\w+)$`), closesCursor},
	{regexp.MustCompile(`^select wipe\(\)$`), deallocatesHidden},
	{regexp.MustCompile(`^select many$`), selectsMany},
	{regexp.MustCompile(`^(?:select|values|with|table|explain) `), selects},
	{regexp.MustCompile(`^(?:insert|update|delete|merge|truncate|create|drop|alter|notify|grant) `), writes},
}

// statementOf reads one statement.
func statementOf(text string) statement {
	s := statement{text: text}
	low := strings.ToLower(strings.Join(strings.Fields(text), " "))
	for _, f := range forms {
		m := f.re.FindStringSubmatch(low)
		if m == nil {
			continue
		}
		s.verb = f.verb
		if f.verb == theCheck || f.verb == theVerdict {
			s.num = checkNumbers{told: m[1], held: m[2]}
			return s
		}
		if len(m) > 1 {
			s.arg = m[1]
		}
		s.also = len(m) > 2 && m[2] != ""
		if f.verb == executes {
			if at := strings.IndexByte(low, '('); at >= 0 {
				s.args = strings.Trim(low[at:], "()")
			}
		}
		return s
	}
	return s
}

// returnsRows reports whether the server describes rows of a statement.
func (s *statement) returnsRows() bool {
	switch s.verb {
	case theCheck, theVerdict, theRefusal, runsNothing, readOnlyMode, failsLate, shows, executes, fetches, deallocatesHidden, selectsMany, selects:
		return true
	default:
		return false
	}
}

// endsBlock reports whether a statement is one of those that a failed block accepts.
func (s *statement) endsBlock() bool {
	return s.verb == commits || s.verb == rollsBack || s.verb == rollsBackTo || s.verb == twoPhases
}

// isTransaction reports whether an Execute of the statement ends what was started with it.
func (s *statement) isTransaction() bool {
	return s.endsBlock() || s.verb == begins || s.verb == savepoints || s.verb == releases
}

// split cuts a text into statements as the lexer of Postgres does. ok is false if it
// ends inside a constant or a comment.
func split(text string, conforming bool) (all []string, ok bool) {
	var now strings.Builder
	flush := func() {
		if s := strings.TrimSpace(now.String()); s != "" {
			all = append(all, s)
		}
		now.Reset()
	}
	for i := 0; i < len(text); {
		n := 1
		switch rest := text[i:]; {
		case strings.HasPrefix(rest, "--"):
			if n = strings.IndexByte(rest, '\n'); n < 0 {
				n = len(rest)
			}
			now.WriteByte(' ')
			i += n
			continue
		case strings.HasPrefix(rest, "/*"):
			if n = commentEnd(rest); n < 0 {
				return nil, false
			}
			now.WriteByte(' ')
			i += n
			continue
		case rest[0] == '\'', rest[0] == '"':
			escapes := rest[0] == '\'' && (!conforming || i > 0 && text[i-1]|0x20 == 'e')
			if n = constantEnd(rest, escapes); n < 0 {
				return nil, false
			}
		case strings.HasPrefix(rest, "$$"):
			if n = strings.Index(rest[2:], "$$"); n < 0 {
				return nil, false
			}
			n += 4
		case rest[0] == ';':
			flush()
			i++
			continue
		}
		now.WriteString(text[i : i+n])
		i += n
	}
	flush()
	return all, true
}

// commentEnd returns the length of the comment that text begins with, or -1.
func commentEnd(text string) int {
	for depth, i := 0, 0; i+1 < len(text); {
		switch text[i : i+2] {
		case "/*":
			depth, i = depth+1, i+2
		case "*/":
			if depth, i = depth-1, i+2; depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return -1
}

// constantEnd returns the length of the constant that text begins with, or -1.
func constantEnd(text string, escapes bool) int {
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && escapes:
			i++
		case text[i] == text[0]:
			return i + 1 // a doubled quote begins the next one
		}
	}
	return -1
}

// read reads a text. ok is false for a syntax error.
func read(text string, conforming bool) (all []statement, ok bool) {
	pieces, ok := split(text, conforming)
	for _, piece := range pieces {
		s := statementOf(piece)
		ok = ok && s.verb != syntaxError
		all = append(all, s)
	}
	return all, ok
}
