package oracle

import "fmt"

// verdict is the model's opinion of a message in one state: why is "" if it is covered.
type verdict struct {
	why string
	// later means that it is wrong only if the preceding check passes, which the
	// replies will show.
	later bool
}

// judge decides whether a statement may be executed in s.
func (o *Observer) judge(s state, q *statement, p place) verdict {
	if s.skip || s.dead || s.copies > 0 && s.byExecute {
		return verdict{}
	}
	if s.phase == failed && (q.kind != opaque || q.one || p.extended) { // an Execute runs one statement
		return verdict{}
	}
	wrong := func(format string, args ...any) verdict {
		return verdict{why: fmt.Sprintf(format, args...) + ": " + s.String() + q.quoted()}
	}
	switch q.kind {
	case nothing, begin, release, rollback, rollbackTo, fails, check, readOnly, claim:
		return verdict{}
	case commit:
		if s.work && s.cover == uncovered && s.phase == block {
			return wrong("COMMIT of a transaction that ran in a read-only mode which was undone")
		}
		return verdict{}
	case twoPhase:
		return wrong("two-phase commit")
	case outside:
		if s.phase == idle && !p.among && !s.pipelined || s.cover == fullCover || q.savepoint && s.cover == readCover {
			return verdict{}
		}
	case query:
		if s.stale && s.cover == readCover && q.modifies {
			return wrong("the execution of a write that is to be discarded")
		}
		if s.cover != uncovered {
			return verdict{}
		}
		if o.facts.ProvenReads && q.plain && s.phase < block && !p.among {
			o.proven++
			return verdict{}
		}
	case writes:
		if s.cover == fullCover {
			return verdict{}
		}
	case commits, lone:
		// In a block, or in a text with other statements, it cannot end the
		// transaction.
		if s.cover == fullCover && (s.phase == block || p.among || p.version >= 18 && s.pipelined) {
			return verdict{}
		}
	}
	if s.cover == fullCover {
		v := wrong("%s, which may go on after the end of the transaction that was checked", kindNames[q.kind])
		v.later = true
		return v
	}
	return wrong("%s without cover", kindNames[q.kind])
}

// judgePrepared decides whether a message may be sent that parses, binds or describes a
// statement. Each of these can run a user's code.
func (o *Observer) judgePrepared(s state, q *statement, what string) verdict {
	if s.skip || s.dead || s.phase == failed || s.cover != uncovered || s.copies > 0 && s.byExecute {
		return verdict{}
	}
	switch q.kind {
	case opaque, writes, query, commits, lone, twoPhase:
	case outside:
		if s.phase == idle || s.phase == implicit || q.savepoint {
			return verdict{} // a utility statement: nothing in it is analysed
		}
	default:
		return verdict{}
	}
	if o.facts.ProvenReads && q.plain && s.phase < block {
		o.proven++
		return verdict{}
	}
	return verdict{why: fmt.Sprintf("%s of %s without cover: %s%s", what, kindNames[q.kind], s, q.quoted())}
}

// quoted returns the text of an unreadable statement, for the end of a complaint.
func (q *statement) quoted() string {
	if q.source == "" {
		return ""
	}
	return fmt.Sprintf("; the text is %q", q.source)
}

func (s state) String() string {
	text := [...]string{"idle", "in an implicit transaction", "in a block", "in a failed block"}[s.phase] +
		[...]string{", uncovered", ", read-only", ", checked"}[s.cover]
	if s.saves != "" {
		text += fmt.Sprintf(", savepoints %q", s.saves)
	}
	if s.chosen != "" || s.chooses {
		text += fmt.Sprintf(", has chosen %q, %q", s.chosen, s.local)
	}
	if s.work {
		text += ", has worked"
	}
	if s.pipelined {
		text += ", has executed"
	}
	if s.copies > 0 {
		text += ", in COPY"
	}
	return "the server may be " + text
}
