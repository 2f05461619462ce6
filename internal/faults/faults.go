// Package faults keeps track of what is wrong with a running proxy. A fault begins with
// its first failure, recurs with each further one, and ends when what failed works again.
// However often it recurs, the log has one line when it begins, one for each Interval that
// it lasts, and one when it ends.
package faults

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Interval is how often a fault that lasts is logged again.
const Interval = time.Minute

// Kind says what is wrong. It is the value of a metric's label.
type Kind string

const (
	// Upstream: Postgres cannot be reached, does not answer, is too old, or is a standby.
	Upstream Kind = "upstream"
	// ControlLogin: Postgres does not let the control role log in.
	ControlLogin Kind = "control_login"
	// Schema: the schema fencepost is missing, incomplete or of an older version.
	Schema Kind = "schema"
	// Privilege: the control role lacks a privilege.
	Privilege Kind = "privilege"
	// Fence: the state of a fence contradicts what was granted before, as after a restore.
	Fence Kind = "fence"
	// LeaseService: the lease service does not answer, or answers with an error.
	LeaseService Kind = "lease_service"
	// LeaseDenied: the lease service denies Fencepost what it needs.
	LeaseDenied Kind = "lease_denied"
	// LeaseTTL: the lease service does not accept a configured TTL.
	LeaseTTL Kind = "lease_ttl"
)

// Kinds are all kinds.
func Kinds() []Kind {
	return []Kind{Upstream, ControlLogin, Schema, Privilege, Fence, LeaseService, LeaseDenied, LeaseTTL}
}

// Fault says what is wrong, and what to do.
type Fault struct {
	Kind    Kind   `json:"kind"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy,omitempty"` // "" if waiting may help
}

const (
	// InServer is where the faults of reaching Postgres are.
	InServer = "upstream"
	// InControl is where the faults of logging in as the control role are, of the role as well as of
	// a Postgres that lets no one log in (Upstream).
	InControl = "control role"
	// InPrimary is where it is said that Postgres is a standby.
	InPrimary = "primary"
)

// databasePrefix begins the places of databases.
const databasePrefix = "database "

// InDatabase returns where the faults of a database are.
func InDatabase(name string) string { return databasePrefix + name }

// DatabaseOf returns the name of the database whose faults are in that place. ok is false if
// it is another place.
func DatabaseOf(where string) (name string, ok bool) { return strings.CutPrefix(where, databasePrefix) }

// Active is a fault that has begun and not ended.
type Active struct {
	Fault
	Where string    `json:"where"` // what fails, as in "database shop"
	Since time.Time `json:"since"`
	Count int       `json:"failures"`
}

// Register has the faults of one proxy. It is safe for concurrent use.
type Register struct {
	log   *zap.Logger
	every time.Duration

	mu     sync.Mutex
	active map[string]*entry // by where
}

type entry struct {
	Fault
	series *Series
}

// NewRegister returns a register without faults, which logs to log. every is how often
// it logs a fault that lasts; 0 means Interval.
func NewRegister(log *zap.Logger, every time.Duration) *Register {
	return &Register{log: log, every: every, active: map[string]*entry{}}
}

// Report records the result of one look at something that may fail: its fault, or nil if
// it works. There is at most one fault in each place: one of another kind ends the last.
func (r *Register) Report(where string, f *Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.active[where]
	if e != nil && (f == nil || f.Kind != e.Kind) {
		e.series.Passed()
		delete(r.active, where)
		e = nil
	}
	if f == nil {
		return
	}
	if e == nil {
		log := r.log.With(zap.String("kind", string(f.Kind)), zap.String("where", where))
		e = &entry{series: NewSeries(log, "fault", r.every)}
		r.active[where] = e
	}
	e.Fault = *f
	e.series.Failed(zap.String("problem", f.Problem), zap.String("remedy", f.Remedy))
}

// wholeServer are the places of what concerns Postgres as a whole, the widest first.
var wholeServer = []string{InServer, InControl}

// Active returns the faults that have not ended, in the order of where they are. A fault of Postgres as a whole
// (Upstream) is the cause of those of that kind elsewhere, which are left out: they are not looked at, or show the
// same.
func (r *Register) Active() []Active {
	r.mu.Lock()
	defer r.mu.Unlock()
	cause := ""
	for _, where := range wholeServer {
		if e := r.active[where]; e != nil && e.Kind == Upstream {
			cause = where
			break
		}
	}
	all := make([]Active, 0, len(r.active))
	for where, e := range r.active {
		if cause != "" && where != cause && e.Kind == Upstream {
			continue
		}
		since, count := e.series.Now()
		all = append(all, Active{Fault: e.Fault, Where: where, Since: since, Count: count})
	}
	slices.SortFunc(all, func(a, b Active) int { return cmp.Compare(a.Where, b.Where) })
	return all
}

// Places returns where faults are, those that Active leaves out, too, in order.
func (r *Register) Places() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.active))
}
