package rejections

import (
	"maps"
	"slices"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/evidence"
	"github.com/fencepost/fencepost/fencing/sqltext"
)

// scope says whose rows are limited together.
type scope uint8

const (
	scopeWorker   scope = iota // of a minute
	scopeUser                  // of a database, in a minute
	scopeDatabase              // of whatever minute
	scopeAll                   // of all databases
)

// most limits the rows of each scope. What a worker or a user may fill are as many as may have lines
// of their own in the audit log: a client that varies its texts or its workers fills neither the
// memory nor the table, and hides only its own refusals.
var most = map[scope]int{scopeWorker: 16, scopeUser: 128, scopeDatabase: 1024, scopeAll: 4096}

// group is whose rows are limited together. Fields that the scope does not have are empty.
type group struct {
	scope                            scope
	minute                           int64
	database, user, resource, worker string
}

// key identifies the rejections that one row counts.
type key struct {
	minute                           int64 // Unix time of its beginning
	database, user, resource, worker string
	kind                             fencing.RejectionKind
	write                            bool
	sqlstate, fingerprint            string
}

// pending counts the rejections that are not recorded yet. It has no clock and no lock.
type pending struct {
	// entries are the rows that are not recorded yet and, without a count, those of the present
	// minute that are.
	entries map[key]*evidence.Rejections
	counts  map[group]int // entries
}

func newPending() *pending {
	return &pending{entries: map[key]*evidence.Rejections{}, counts: map[group]int{}}
}

// minuteOf returns when the minute of a time began.
func minuteOf(t time.Time) int64 { return t.Truncate(time.Minute).Unix() }

// groups returns what an entry is limited with.
func (k key) groups() [4]group {
	return [4]group{
		{scope: scopeWorker, minute: k.minute, database: k.database, user: k.user, resource: k.resource, worker: k.worker},
		{scope: scopeUser, minute: k.minute, database: k.database, user: k.user},
		{scope: scopeDatabase, database: k.database},
		{scope: scopeAll},
	}
}

// add counts a rejection. It reports false if there is no room for it. Of a worker that has too many
// different statements, the others are counted together.
func (p *pending) add(r fencing.Rejection, a sqltext.Audit) bool {
	k := key{
		minute: minuteOf(r.Time), database: r.Database, user: r.User, resource: r.Resource, worker: r.Worker,
		kind: r.Kind, write: r.Write, sqlstate: r.SQLState, fingerprint: a.Fingerprint,
	}
	row := evidence.Rejections{
		Minute: time.Unix(k.minute, 0).UTC(), Resource: r.Resource, Worker: r.Worker, User: r.User, Kind: r.Kind.String(), Write: r.Write,
		SQLState: r.SQLState, Fingerprint: a.Fingerprint, Count: 1, First: r.Time, Last: r.Time,
		Latest: evidence.Rejection{
			Epoch: int64(r.Epoch), Current: int64(r.Current), Holder: r.Holder,
			Client: r.Client, Proxy: r.Proxy, Statement: a.Statement,
		},
	}
	if p.entries[k] == nil && p.counts[k.groups()[scopeWorker]] >= most[scopeWorker] {
		k.fingerprint, row.Fingerprint, row.Latest.Statement = "", "", ""
	}
	return p.put(k, row)
}

// put adds a row to the entry of its key. It reports false if there is no room for another entry.
func (p *pending) put(k key, row evidence.Rejections) bool {
	if e := p.entries[k]; e != nil {
		merge(e, row)
		return true
	}
	for _, g := range k.groups() {
		if g.scope != scopeWorker && p.counts[g] >= most[g.scope] {
			return false
		}
	}
	p.entries[k] = &row
	for _, g := range k.groups() {
		p.counts[g]++
	}
	return true
}

// merge adds a row to an entry.
func merge(e *evidence.Rejections, row evidence.Rejections) {
	if e.Count == 0 {
		*e = row
		return
	}
	e.Count += row.Count
	if row.First.Before(e.First) {
		e.First = row.First
	}
	if !row.Last.Before(e.Last) {
		e.Last, e.Latest = row.Last, row.Latest
	}
}

// batch is rows that are being recorded.
type batch map[key]evidence.Rejections

// rows returns the rows, in no order.
func (b batch) rows() []evidence.Rejections { return slices.Collect(maps.Values(b)) }

// count returns how many rejections the rows count.
func (b batch) count() (n int64) {
	for _, e := range b {
		n += e.Count
	}
	return n
}

// databases returns the databases of what is not recorded yet.
func (p *pending) databases() []string {
	found := map[string]bool{}
	for k, e := range p.entries {
		if e.Count > 0 {
			found[k.database] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}

// take returns what is not recorded yet of a database, and counts it no more.
func (p *pending) take(database string) batch {
	taken := batch{}
	for k, e := range p.entries {
		if k.database == database && e.Count > 0 {
			taken[k] = *e
			e.Count = 0
		}
	}
	return taken
}

// expire removes the entries without a count of minutes that are over. Those of the present minute
// stay, because its limits continue to apply.
func (p *pending) expire(now time.Time) {
	for k, e := range p.entries {
		if e.Count > 0 || k.minute >= minuteOf(now) {
			continue
		}
		delete(p.entries, k)
		for _, g := range k.groups() {
			if p.counts[g]--; p.counts[g] == 0 {
				delete(p.counts, g)
			}
		}
	}
}

// giveBack counts again what could not be recorded, and returns how many rejections there was no room
// for.
func (p *pending) giveBack(b batch) (lost int64) {
	for k, e := range b {
		if !p.put(k, e) {
			lost += e.Count
		}
	}
	return lost
}
