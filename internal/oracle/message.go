package oracle

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"slices"
	"strings"
)

// message is one message that was sent to the server.
type message struct {
	typ   byte
	bad   bool // malformed: the server refuses it
	name  string
	batch int
	ran   int // how many messages up to this one may have run something
	// may are the statements that it may refer to: one for a Parse, those of its text
	// in order for a Query. here are those of an Execute whose portal was bound since
	// the last Sync.
	may  []statement
	here []statement
	// declared means that the portal of this Execute may be an SQL cursor: no Bind has created it, or
	// something has run since then that may have closed it and declared a cursor of its name.
	declared bool
	noted    bool // it was sent under a registration
	rests    bool // and depends on it alone
	maybe    bool // a Sync that the server may have taken for part of the COPY data

	// The replies so far.
	tags     []string
	failed   bool
	answered bool // an Execute whose reply has shown which statement it ran
	copies   int  // CopyInResponses
}

// prepared is what a name may stand for: the Parse or Bind messages that may have
// defined it, the latest one last. There is at least one.
type prepared struct{ by []*message }

func (p *prepared) last() *message { return p.by[len(p.by)-1] }

// may returns what the name stands for in a message of that batch.
func (p *prepared) may(batch int) []statement {
	if p == nil {
		return unread
	}
	if last := p.last(); last.batch == batch {
		return last.may // if it had failed, the server would skip the message
	}
	return p.all()
}

// all returns what the name may stand for in any message.
func (p *prepared) all() (all []statement) {
	for _, m := range p.by {
		all = append(all, m.may...)
	}
	return all
}

// since returns what the name may stand for if it was defined in batch synced or later,
// after a Sync: if the last definition had failed, the server would skip up to the next
// Sync.
func (p *prepared) since(synced int) []statement {
	if last := p.last(); last.batch >= synced {
		return last.may
	}
	return nil
}

// define adds m as a definition of its name, if m succeeds.
func define(names map[string]*prepared, m *message) {
	p := names[m.name]
	if p == nil {
		p = &prepared{}
		names[m.name] = p
	}
	p.by = append(p.by, m)
}

// confirm records the success of m: its name is defined by m or by a later message.
func confirm(names map[string]*prepared, m *message) {
	if p := names[m.name]; p != nil {
		p.by = p.by[max(0, slices.Index(p.by, m)):]
	}
}

// undefine records the failure of m.
func undefine(names map[string]*prepared, m *message) {
	p := names[m.name]
	if p == nil {
		return
	}
	if p.by = slices.DeleteFunc(p.by, func(x *message) bool { return x == m }); len(p.by) == 0 {
		delete(names, m.name)
	}
}

// kept is as much of a name as the server keeps.
func kept(name []byte) []byte { return name[:min(len(name), 63)] }

// murky reports whether names that differ may be one for the server, which converts
// them.
func murky(name []byte) bool { return sensitive(kept(name)) }

// message decodes a message of the client side.
func (o *Observer) message(f frame) *message {
	m := &message{typ: f.typ, batch: o.batch, noted: o.noted}
	if f.size > len(f.body) {
		m.may, m.here = unread, unread
		return m
	}
	if f.typ != 'S' && o.predicted.skips() {
		return m // so it changes no name
	}
	switch f.typ {
	case 'Q':
		sql, rest, ok := text(f.body)
		m.bad = !ok || len(rest) > 0
		m.may = o.readText(sql)
		delete(o.statements, "")
		delete(o.portals, "")
	case 'P':
		o.parse(m, f.body)
	case 'B':
		o.bind(m, f.body)
	case 'D', 'C':
		if len(f.body) < 2 {
			m.bad = true
			break
		}
		name, _, _ := text(f.body[1:])
		m.name = string(kept(name))
		o.describe(m, f.body[0], name)
	case 'S', 'H':
		m.bad = len(f.body) > 0
	case 'E':
		name, _, ok := text(f.body)
		p := o.portals[string(kept(name))]
		m.bad = !ok
		switch {
		case murky(name):
			m.may = o.murkyPortals()
			m.here = m.may
		case p == nil:
			m.declared = true
		default:
			m.may, m.here = p.may(o.batch), p.since(o.synced)
			m.declared = len(name) > 0 && p.last().ran != o.ran
		}
		m.may, m.here = o.resolved(m.may), o.resolved(m.here)
	}
	sql, _, _ := text(f.body)
	o.rename(m, sql)
	return m
}

// emptyStatement stands for a text without a statement.
var emptyStatement = []statement{{kind: nothing, empty: true}}

// cursor is what the Execute of an SQL cursor runs.
var cursor = []statement{{kind: query}}

// mayIn returns the statements that the message may refer to in s. Portals end with
// their transaction, except cursors WITH HOLD, which have already run by then.
func (m *message) mayIn(s state) []statement {
	may := m.may
	switch {
	case m.typ != 'E':
		return may
	case s.phase == idle:
		return nil
	case s.phase == implicit:
		may = m.here
	case s.phase == failed && !m.answered: // the portal may be one whose Bind has failed, which is empty
		may = join(may, emptyStatement)
	}
	if m.declared && (s.phase == failed || s.cover != uncovered || s.work) { // a cursor is declared under coverage
		may = join(may, cursor)
	}
	return may
}

func join(all, more []statement) []statement { return append(all[:len(all):len(all)], more...) }

// murkyPortals returns what a portal with a murky name may run: the statement of any
// other such portal. None outlives its transaction.
func (o *Observer) murkyPortals() []statement {
	all := cursor
	for name, p := range o.portals {
		if murky([]byte(name)) {
			all = append(all[:len(all):len(all)], p.all()...)
		}
	}
	return all
}

func (o *Observer) parse(m *message, body []byte) {
	name, rest, ok := text(body)
	sql, types, ok2 := text(rest)
	if m.bad = !ok || !ok2; m.bad {
		return
	}
	m.name = string(kept(name))
	m.may = sourced(read(sql, o.reading(sql), true), sql)
	switch len(m.may) {
	case 0:
		m.may = emptyStatement
	case 1:
	default: // the server refuses all others
		m.may = []statement{{kind: fails, early: true}}
	}
	if m.may[0].kind >= outside && len(types) > 2 {
		// It is harmless itself, but binding it creates values of any type.
		m.may = append([]statement{{kind: query}}, m.may...)
	}
	if !murky(name) {
		define(o.statements, m)
	}
}

func (o *Observer) bind(m *message, body []byte) {
	portal, rest, ok := text(body)
	name, rest, ok2 := text(rest)
	if m.bad = !ok || !ok2; m.bad {
		return
	}
	m.name = string(kept(portal))
	m.may = o.named(name)
	if params, ok := numbers(rest); ok {
		m.may = withParameters(m.may, params)
	}
	define(o.portals, m)
}

// withParameters substitutes parameters in checks.
func withParameters(all []statement, params []string) []statement {
	out := append([]statement(nil), all...)
	for i := range out {
		if out[i].kind == check {
			out[i].check = out[i].check.with(params)
		}
	}
	return out
}

// numbers decodes the parameters of a Bind if they are eight-byte numbers, as those of
// a check are. b starts after the names.
func numbers(b []byte) (params []string, ok bool) {
	next := func() int {
		if len(b) < 2 {
			b = nil
			return 0
		}
		n := int(binary.BigEndian.Uint16(b))
		b = b[2:]
		return n
	}
	formats := next()
	if len(b) < 2*formats {
		return nil, false
	}
	b = b[2*formats:]
	for range next() {
		if len(b) < 12 || binary.BigEndian.Uint32(b) != 8 {
			return nil, false
		}
		params = append(params, itoa(int64(binary.BigEndian.Uint64(b[4:]))))
		b = b[12:]
	}
	return params, true
}

func (o *Observer) describe(m *message, what byte, name []byte) {
	if m.typ == 'D' && what == 'S' {
		m.may = o.named(name)
	}
}

// named returns the statements that a message which names a prepared statement may
// refer to. A statement that has run since its Parse may have redefined the name by
// DEALLOCATE and PREPARE, which accepts only queries. The unnamed statement has no name
// in SQL. A user who redefines the names of the checks attacks them from inside the
// server, which nothing prevents. It is also assumed that nobody redefines reads that
// go unchecked because they are proven.
func (o *Observer) named(name []byte) []statement {
	if murky(name) {
		return unread
	}
	p := o.statements[string(kept(name))]
	may := p.may(o.batch)
	if p == nil || len(name) == 0 || p.last().ran == o.ran {
		return may
	}
	if o.redefinable(may) {
		return append(may[:len(may):len(may)], statement{kind: query})
	}
	return may
}

// redefinable reports whether a name that stands for one of all may have been prepared
// again unseen.
func (o *Observer) redefinable(all []statement) bool {
	return slices.ContainsFunc(all, func(q statement) bool {
		return q.kind != check && q.kind != readOnly && !(o.facts.ProvenReads && q.plain)
	})
}

// rename drops the names that a text may redefine, except those of which named does not
// rule that out. Names that it only deallocates are
// kept: messages that use them fail and run nothing.
func (o *Observer) rename(m *message, sql []byte) {
	if m.typ != 'Q' && m.typ != 'E' {
		return
	}
	for i := range m.may {
		switch q := &m.may[i]; {
		case q.kind == fails, q.kind == check && (q.check.chosen || o.own(q.check)) && !q.check.passes():
			return // the rest is not run
		case q.kind == opaque && m.typ == 'Q':
			o.forget(sql)
		case q.prepares:
			// It fails if the name is taken, and named knows that it may not be.
			if p := o.statements[q.runs]; p == nil || !o.redefinable(p.all()) {
				delete(o.statements, q.runs)
			}
		}
	}
}

// forget drops the names that an unreadable text might redefine: the text must contain
// PREPARE, and the name itself or an escaped identifier.
func (o *Observer) forget(sql []byte) {
	if at := front.FindIndex(sql); at != nil {
		sql = sql[at[1]:]
	}
	sql = bytes.ToLower(sql)
	if !bytes.Contains(sql, []byte("prepare")) {
		return
	}
	if bytes.Contains(sql, []byte("u&")) {
		clear(o.statements)
	}
	for name := range o.statements {
		if bytes.Contains(sql, bytes.ToLower([]byte(name))) {
			delete(o.statements, name)
		}
	}
}

// front matches an injected statement at the start of a text.
var front = regexp.MustCompile(`^(?:EXECUTE \w+(?:\([\d,]+\))?|` + regexp.QuoteMeta(readOnlyText) + `|` + regexp.QuoteMeta(refusalText) +
	`|` + choiceSQL + `(?: UNION ALL ` + checkSQL + `)+` +
	`|SELECT fencepost\.refuse\((?:[^';]|'[^']*')*);`)

// ourFront reads the statement that the proxy has injected in front of a text. However
// the rest is read, that is one statement: it contains no quotes except those of a
// check.
func (o *Observer) ourFront(sql []byte) (first []statement, rest []byte) {
	at := front.FindIndex(sql)
	if at == nil {
		return nil, sql
	}
	first = read(sql[:at[1]-1], standard, false)
	if len(first) != 1 {
		return nil, sql
	}
	switch s := &first[0]; {
	case s.kind == check, s.kind == fails, s.kind == readOnly, s.runs != "" && !s.prepares:
		return first, sql[at[1]:]
	default:
		return nil, sql
	}
}

// readText reads the text of a Query.
func (o *Observer) readText(sql []byte) []statement {
	first, rest := o.ourFront(sql)
	all := append(first, sourced(read(rest, o.reading(rest), false), rest)...)
	for i := range all {
		o.resolve(&all[i])
	}
	return all
}

// resolved returns all with each SQL EXECUTE resolved.
func (o *Observer) resolved(all []statement) []statement {
	all = slices.Clone(all)
	for i := range all {
		o.resolve(&all[i])
	}
	return all
}

// resolve replaces an SQL EXECUTE by the statement that it runs.
func (o *Observer) resolve(q *statement) {
	if q.runs == "" || q.prepares {
		return
	}
	may := o.statements[q.runs].may(o.batch)
	if o.statements[q.runs] == nil || len(may) != 1 {
		return // defined by PREPARE: a query
	}
	switch s := may[0]; {
	case s.kind == check:
		s.check = s.check.with(q.args)
		*q = s
	case s.kind == readOnly:
		*q = s
	case s.kind == begin, s.kind == commit, s.kind == rollback, s.kind == release, s.kind == rollbackTo, s.savepoint:
		q.afterwards = &s
	case s.kind == commits: // what EXECUTE calls cannot end a transaction
		*q = statement{kind: writes}
	case s.kind == twoPhase:
		*q = statement{kind: opaque, one: true}
	}
}

// own reports whether a check is that of the fence and candidacy of the startup.
func (o *Observer) own(c checkText) bool {
	return c.never || c.fence == itoa(int64(o.facts.Fence)) && unquote(c.incarnation) == o.facts.Incarnation
}

// mine reports whether a check is that of what the transaction is to be checked for in s.
func (o *Observer) mine(s state, c checkText) bool {
	value := s.choice()
	if c.never || value == "" && !c.chosen || value == o.facts.Resource && !c.chosen {
		return o.own(c)
	}
	if !c.chosen || !c.agrees(value) {
		return false
	}
	if c.unchosen {
		return c.value == o.facts.Resource && o.own(c.each[0])
	}
	wanted := map[candidacy]bool{}
	for _, name := range strings.Split(value, ",") {
		name = strings.TrimSpace(name)
		if whom, named := o.resources[name]; named {
			wanted[whom] = true
		} else if name == o.facts.Resource || value == "" {
			wanted[candidacy{itoa(int64(o.facts.Fence)), o.facts.Incarnation}] = true
		} else {
			return false
		}
	}
	for _, each := range c.each {
		delete(wanted, candidacy{each.fence, unquote(each.incarnation)})
	}
	return len(wanted) == 0
}

// runs reports whether a message may run something of the user's.
func (m *message) runs() bool {
	switch m.typ {
	case 'P', 'B', 'D', 'E', 'Q':
		return m.declared || slices.ContainsFunc(m.may, func(q statement) bool { return q.kind != check && q.kind != readOnly && q.kind != claim })
	case 'F', 'S':
		return true
	default:
		return false
	}
}

// keepsSettings reports whether a message changes no setting, because it runs nothing
// of the user's. (A failure might undo what a block has set, but then nothing runs
// until the end of the block. The effects of COPY data are attributed to the COPY.)
func (m *message) keepsSettings() bool {
	switch m.typ {
	case 'S', 'C', 'H', 'd', 'c', 'f':
		return true
	case 'P':
		return len(m.may) == 1 && (m.may[0].kind == check || m.may[0].kind == readOnly || m.may[0].kind == claim)
	case 'B', 'E':
		return len(m.may) == 1 && m.may[0].kind == claim
	default:
		return false
	}
}

// reading returns how the server reads that text if it comes next. The server reports a
// changed setting no later than ReadyForQuery. The encoding matters only to bytes
// outside ASCII, and to those after them.
func (o *Observer) reading(text []byte) reading {
	switch {
	case o.unsaid || o.open || !o.safe && !ascii(text):
		return unknown
	case o.conforming:
		return standard
	default:
		return escapes
	}
}
