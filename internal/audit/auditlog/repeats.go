package auditlog

import (
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// Interval is how often a summary counts the refusals that repeat an earlier one.
const Interval = 10 * time.Second

// scope says what the refusals of an entry have in common: from one statement of one
// worker to nothing but their kind.
type scope uint8

const (
	scopeStatement scope = iota
	scopeWorker
	scopeUser
	scopeAll
)

// mostEntries limits how many entries one worker, one user of a database, and all
// together may have. A refusal above a limit is counted in an entry with a wider scope,
// so that a client that varies its text, its worker or its resource fills neither the
// memory nor the log, and hides only its own refusals.
var mostEntries = map[scope]int{scopeWorker: 16, scopeUser: 128, scopeAll: 1024}

// key identifies the refusals that are counted together. Fields in which the refusals of
// its scope may differ are empty.
type key struct {
	scope    scope
	kind     fencing.RejectionKind
	write    bool
	shadow   bool
	sqlstate string
	group
	fingerprint string
}

// group is whose entries are limited together.
type group struct{ database, user, resource, worker string }

func keyOf(r fencing.Rejection, fingerprint string) key {
	return key{
		kind: r.Kind, write: r.Write, shadow: r.Shadow, sqlstate: r.SQLState, fingerprint: fingerprint,
		group: group{database: r.Database, user: r.User, resource: r.Resource, worker: r.Worker},
	}
}

// wider returns the key with the next wider scope.
func (k key) wider() key {
	k.fingerprint = ""
	switch k.scope {
	case scopeStatement:
		k.scope = scopeWorker
	case scopeWorker:
		k.scope, k.resource, k.worker = scopeUser, "", ""
	default:
		k.scope, k.sqlstate, k.group = scopeAll, "", group{}
	}
	return k
}

// within returns the groups of wider scopes that the key belongs to.
func (k key) within() map[scope]group {
	all := map[scope]group{scopeAll: {}}
	if k.scope < scopeUser {
		all[scopeUser] = group{database: k.database, user: k.user}
	}
	if k.scope < scopeWorker {
		all[scopeWorker] = k.group
	}
	return all
}

// line is one line of the log.
type line struct {
	fencing.Rejection // without its Statement
	sqltext.Audit
	scope scope
	// repeated is how many refusals the line represents, and since the time of the first
	// of them. repeated is 0 if the line is the first of its kind.
	repeated int
	since    time.Time
}

// entry counts the refusals of one key that have no line yet.
type entry struct {
	last line // the latest of them
	due  time.Time
}

// repeats decides which refusals get a line of their own, and counts the rest. It has no
// clock and no lock.
type repeats struct {
	entries map[key]*entry
	counts  map[scope]map[group]int // entries in each group with a limit
}

func newRepeats() *repeats {
	r := &repeats{entries: map[key]*entry{}, counts: map[scope]map[group]int{}}
	for s := range mostEntries {
		r.counts[s] = map[group]int{}
	}
	return r
}

// add reports whether a refusal gets a line now. Otherwise it is counted.
func (r *repeats) add(l line, now time.Time) bool {
	if l.SQLState == fencing.StateSuperseded && l.Kind != fencing.KindDiscarded && !l.Shadow {
		return true // the trace of a process that works under a lease it has lost
	}
	k := keyOf(l.Rejection, l.Fingerprint)
	for {
		if e := r.entries[k]; e != nil {
			e.count(l)
			return false
		}
		if r.fits(k) {
			break
		}
		k = k.wider()
	}
	e := &entry{due: now.Add(Interval)}
	r.put(k, e)
	if k.scope == scopeStatement {
		return true
	}
	e.count(l)
	return false
}

// count counts one refusal.
func (e *entry) count(l line) {
	l.repeated, l.since = e.last.repeated+1, e.last.since
	if l.repeated == 1 {
		l.since = l.Time
	}
	e.last = l
}

// fits reports whether an entry can be added without exceeding a limit.
func (r *repeats) fits(k key) bool {
	if k.scope == scopeAll {
		return true // one for each kind
	}
	for s, g := range k.within() {
		if r.counts[s][g] >= mostEntries[s] {
			return false
		}
	}
	return true
}

func (r *repeats) put(k key, e *entry) {
	r.entries[k] = e
	for s, g := range k.within() {
		r.counts[s][g]++
	}
}

func (r *repeats) remove(k key) {
	delete(r.entries, k)
	for s, g := range k.within() {
		if r.counts[s][g]--; r.counts[s][g] == 0 {
			delete(r.counts[s], g)
		}
	}
}

// due returns the summaries whose time has come. An entry that nothing was added to for
// an Interval is removed: the next refusal like it gets a line of its own.
func (r *repeats) due(now time.Time) []line {
	var lines []line
	for k, e := range r.entries {
		switch {
		case now.Before(e.due):
		case e.last.repeated == 0:
			r.remove(k)
		default:
			lines = append(lines, e.summary(k))
			*e = entry{due: now.Add(Interval)}
		}
	}
	return lines
}

// rest removes all entries, and returns the summaries of what they have counted.
func (r *repeats) rest() []line {
	var lines []line
	for k, e := range r.entries {
		if e.last.repeated > 0 {
			lines = append(lines, e.summary(k))
		}
		r.remove(k)
	}
	return lines
}

// next returns when due has something to do, and false if it never will.
func (r *repeats) next() (at time.Time, ok bool) {
	for _, e := range r.entries {
		if !ok || e.due.Before(at) {
			at, ok = e.due, true
		}
	}
	return at, ok
}

// summary returns the line of what e has counted: the latest refusal, without what it
// does not have in common with the others.
func (e *entry) summary(k key) line {
	l := e.last
	l.scope = k.scope
	if k.scope >= scopeWorker {
		l.Audit, l.Message = sqltext.Audit{}, ""
	}
	if k.scope >= scopeUser {
		l.Resource, l.Worker, l.Incarnation, l.Finding = "", "", "", fencing.Finding{}
		l.Client, l.Session = "", ""
	}
	if k.scope == scopeAll {
		l.Database, l.User, l.SQLState = "", "", ""
	}
	return l
}
