package oracle

import (
	"bytes"
	"encoding/binary"
	"regexp"
	"slices"
)

// message is one message that went to the server.
type message struct {
	typ   byte
	bad   bool // malformed: the server refuses it
	name  string
	batch int
	ran   int // how many messages may have run something before
	// may are the statements that it may be about: one for a Parse, and of a
	// Query those of its text, in order. here are those of an Execute whose portal
	// was bound since the last Sync.
	may  []statement
	here []statement
	// nobody: no Bind has made the portal of this Execute.
	nobody bool
	noted  bool // it went out under a note
	rests  bool // and rests on it alone
	maybe  bool // a Sync that the server may have taken for a part of COPY data

	// What was answered so far.
	tags   []string
	failed bool
	copies int // CopyInResponses
}

// prepared is what a name may stand for: the Parse or Bind messages that may have
// given it its meaning, the last of them at the end. There is one at least.
type prepared struct{ by []*message }

// may returns what the name stands for in a message of that batch.
func (p *prepared) may(batch int) []statement {
	if p == nil {
		return unread
	}
	if last := p.by[len(p.by)-1]; last.batch == batch {
		return last.may // had it failed, the server would skip the message
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

// since is may for what was given its meaning from that batch on, after a Sync: had the
// last message failed, the server would skip up to the next Sync.
func (p *prepared) since(synced int) []statement {
	if last := p.by[len(p.by)-1]; last.batch >= synced {
		return last.may
	}
	return nil
}

// define gives the name of m another meaning, if m succeeds.
func define(names map[string]*prepared, m *message) {
	p := names[m.name]
	if p == nil {
		p = &prepared{}
		names[m.name] = p
	}
	p.by = append(p.by, m)
}

// confirm follows the success of m: its name has that meaning, or one that a later
// message gives it.
func confirm(names map[string]*prepared, m *message) {
	if p := names[m.name]; p != nil {
		p.by = p.by[max(0, slices.Index(p.by, m)):]
	}
}

// undefine follows the failure of m.
func undefine(names map[string]*prepared, m *message) {
	p := names[m.name]
	if p == nil {
		return
	}
	if p.by = slices.DeleteFunc(p.by, func(x *message) bool { return x == m }); len(p.by) == 0 {
		delete(names, m.name)
	}
}

// murky reports whether names that differ on the wire may be one for the server,
// which cuts and converts them.
func murky(name []byte) bool {
	return len(name) >= 63 || sensitive(name)
}

// message reads a message of the client's side.
func (o *Observer) message(f frame) *message {
	m := &message{typ: f.typ, batch: o.batch, ran: o.ran, noted: o.noted}
	if f.size > len(f.body) {
		m.may, m.here = unread, unread
		return m
	}
	if f.typ != 'S' && o.predicted.skips() {
		return m // and so it changes no name
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
		m.name = string(name)
		o.describe(m, f.body[0], name)
	case 'S', 'H':
		m.bad = len(f.body) > 0
	case 'E':
		name, _, ok := text(f.body)
		m.bad, m.may = !ok, cursor
		if p := o.portals[string(name)]; p != nil {
			m.may, m.here = p.may(o.batch), p.since(o.synced)
		} else {
			m.nobody = !murky(name)
		}
		if murky(name) {
			m.may = o.murkyPortals()
			m.here = m.may
		}
	}
	sql, _, _ := text(f.body)
	o.rename(m, sql)
	return m
}

// cursor is what the Execute of a portal runs that no Bind has made: an SQL cursor,
// or nothing.
var cursor = []statement{{kind: query}}

// mayIn returns what the message may be about in s. Portals end with their
// transaction, but for cursors WITH HOLD, which have run by then.
func (m *message) mayIn(s state) []statement {
	switch {
	case m.typ == 'E' && m.nobody && s.phase == block && s.cover == uncovered && !s.work:
		return nil // a cursor of SQL is declared under cover, which then holds
	case m.typ != 'E' || s.phase >= block:
		return m.may
	case s.phase == implicit:
		return m.here
	default:
		return nil
	}
}

// murkyPortals is what a portal may run whose name is murky: that of any other such
// portal. None outlives its transaction.
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
	m.name = string(name)
	m.may = sourced(read(sql, o.reading(sql), true), sql)
	switch len(m.may) {
	case 0:
		m.may = []statement{{kind: nothing, empty: true}}
	case 1:
	default: // refused by the server, whatever they are
		m.may = []statement{{kind: fails, early: true}}
	}
	if m.may[0].kind >= outside && len(types) > 2 {
		// Harmless itself, but to bind it makes values of any type.
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
	m.name = string(portal)
	m.may = o.named(name)
	if params, ok := numbers(rest); ok {
		m.may = withParameters(m.may, params)
	}
	define(o.portals, m)
}

// withParameters puts parameters into checks.
func withParameters(all []statement, params []string) []statement {
	out := append([]statement(nil), all...)
	for i := range out {
		if out[i].kind == check {
			out[i].check = out[i].check.with(params)
		}
	}
	return out
}

// numbers reads the parameters of a Bind if they are numbers of eight bytes, as
// those of a check are; b begins behind the names.
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

// named is what a message may be about that names a prepared statement. What has run
// since its Parse may have given the name to another one by DEALLOCATE and PREPARE,
// which takes queries only. The unnamed statement has no name for SQL, and whoever
// takes those of the checks attacks them from inside the server, which nothing stops.
// Nor is it believed that somebody does it to reads that go unchecked for their proof.
func (o *Observer) named(name []byte) []statement {
	if murky(name) {
		return unread
	}
	p := o.statements[string(name)]
	may := p.may(o.batch)
	if p == nil || len(name) == 0 || p.by[len(p.by)-1].ran+1 == o.ran {
		return may
	}
	for i := range may {
		q := &may[i]
		if q.kind != check && q.kind != readOnly && !(o.facts.ProvenReads && q.plain) {
			return append(may[:len(may):len(may)], statement{kind: query})
		}
	}
	return may
}

// rename forgets the names that a text may give another meaning. Those that it only
// frees keep theirs: what names them fails, and runs nothing.
func (o *Observer) rename(m *message, sql []byte) {
	if m.typ != 'Q' && m.typ != 'E' {
		return
	}
	for i := range m.may {
		switch q := &m.may[i]; {
		case q.kind == fails, q.kind == check && o.mine(q.check) && !q.check.passes():
			return // what follows is not run
		case q.kind == opaque && m.typ == 'Q':
			o.forget(sql)
		case q.prepares:
			delete(o.statements, q.runs)
		}
	}
}

// forget forgets the names that a text which cannot be read might give another
// meaning: it must have PREPARE in it, and name them or write them in escapes.
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

// front finds a statement of the proxy's at the start of a text.
var front = regexp.MustCompile(`^(?:EXECUTE \w+(?:\([\d,]+\))?|` + regexp.QuoteMeta(readOnlyText) + `|` + regexp.QuoteMeta(refusalText) +
	`|SELECT fencepost\.refuse\((?:[^';]|'[^']*')*);`)

// ourFront reads what the proxy has put in front of a text. However the rest is
// read, that is one statement: it has no quotes, or they are those of a check.
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

// resolve follows an SQL EXECUTE to what it runs.
func (o *Observer) resolve(q *statement) {
	if q.runs == "" || q.prepares {
		return
	}
	may := o.statements[q.runs].may(o.batch)
	if o.statements[q.runs] == nil || len(may) != 1 {
		return // of a PREPARE: a query
	}
	switch s := may[0]; s.kind {
	case check:
		s.check = s.check.with(q.args)
		*q = s
	case readOnly:
		*q = s
	case begin, commit, rollback, release, rollbackTo, commits, twoPhase:
		*q = statement{kind: opaque}
	}
}

// mine reports whether a check is that of this session's fence and candidacy.
func (o *Observer) mine(c checkText) bool {
	return c.never || c.fence == itoa(int64(o.facts.Fence)) && unquote(c.incarnation) == o.facts.Incarnation
}

// keepsSettings reports that a message changes no setting: it runs nothing of a
// user's. (A failure might undo what a block has set, but then nothing runs up to
// the end of the block. What COPY data brings about belongs to the COPY.)
func (m *message) keepsSettings() bool {
	switch m.typ {
	case 'S', 'C', 'H', 'd', 'c', 'f':
		return true
	case 'P':
		return len(m.may) == 1 && (m.may[0].kind == check || m.may[0].kind == readOnly)
	default:
		return false
	}
}

// reading is how the server reads that text if it comes next. It reports a change of a
// setting with ReadyForQuery. The encoding matters only to bytes outside ASCII, and to
// those after them.
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
