// Package doctor says what is wrong or risky in an installation. Look gathers the facts,
// and Diagnose, which is pure, turns them into findings.
package doctor

import (
	"fmt"
)

// Severity says how bad a finding is.
type Severity string

const (
	// Error: the fence does not hold, or Fencepost cannot work.
	Error Severity = "error"
	// Warning: it works, but something can go wrong that the operator can prevent.
	Warning Severity = "warning"
)

// Finding is one thing that is wrong or risky.
type Finding struct {
	Severity Severity `json:"severity"`
	ID       string   `json:"id"`    // stable; docs/doctor.md explains each
	Where    string   `json:"where"` // as in "database shop"
	Seen     string   `json:"seen"`
	Why      string   `json:"why"` // why it matters
	Do       string   `json:"do"`  // what to do
}

// kind is what all findings of one id have in common.
type kind struct {
	severity Severity
	id, why  string
}

// kinds are all kinds, in the order of docs/doctor.md.
var kinds []*kind

func newKind(severity Severity, id, why string) *kind {
	k := &kind{severity, id, why}
	kinds = append(kinds, k)
	return k
}

// findings collects what is found in one place.
type findings struct {
	where string
	list  []Finding
}

// add adds a finding: what was seen, and what to do.
func (f *findings) add(k *kind, seen, do string) {
	f.list = append(f.list, Finding{Severity: k.severity, ID: k.id, Where: f.where, Seen: seen, Why: k.why, Do: do})
}

// addf is add with arguments for what was seen.
func (f *findings) addf(k *kind, do, format string, args ...any) {
	f.add(k, fmt.Sprintf(format, args...), do)
}
