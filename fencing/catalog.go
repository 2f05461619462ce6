package fencing

import (
	"cmp"
	"strings"
	"sync/atomic"
)

// Facts is what a database's catalogue tells about its names, whatever schema
// they are in: in each map, "" says that all things of that name are harmless,
// and any other value why one is not. What is in no map does not exist, or was
// made since the facts were read.
type Facts struct {
	// Relations can be read without running anything but what is built in. All
	// relations are in it.
	Relations map[string]string
	// Functions are built in, and run nothing but themselves. Aggregates and
	// window functions count as functions.
	Functions map[string]string
	// Volatile are those of Functions that are built in and volatile.
	Volatile map[string]bool
	// Attributes are functions of users that can be written as x.name, and
	// domains that a row can be made one of in that way.
	Attributes map[string]bool
	// Operators are built in, and no operand of a built-in type can reach another
	// of that name.
	Operators map[string]string
	// Types are built in, or enums, or arrays of these. Row types of users'
	// relations are left to Relations.
	Types map[string]string
	// UserRelations are those of Relations whose row type is not built in.
	UserRelations map[string]bool
	// Nothing, if not "", says why nothing at all can be proven: code of a user's
	// can run where no name shows it.
	Nothing string
}

// Catalog is an immutable snapshot of what a database's names mean. It is safe
// for concurrent use, and must not be copied.
type Catalog struct {
	facts         Facts
	id            uint64
	wideAttribute bool // a name in Attributes is not ASCII
}

// catalogs numbers the catalogues of this process.
var catalogs atomic.Uint64

// NewCatalog makes a catalogue of facts, which must not change any more.
func NewCatalog(f Facts) *Catalog {
	c := &Catalog{facts: f, id: catalogs.Add(1)}
	for name := range f.Attributes {
		c.wideAttribute = c.wideAttribute || !isASCII(name)
	}
	return c
}

// Why no catalogue proves a text.
const (
	noCatalog = "nothing is known of the database's catalogue now"
	notRead   = "it is not a read"
	notOne    = "it is not one statement"
	neverRead = "its names were not looked at"
)

// ProvenText is Proven for a text, which must be one statement.
func (c *Catalog) ProvenText(t *Text) (proven bool, why string) {
	switch {
	case !t.Known:
		return false, cmp.Or(t.why, notRead)
	case len(t.Statements) != 1:
		return false, notOne
	}
	return c.Proven(&t.Statements[0])
}

// Proven reports that s, run by whoever and under whatever search_path, changes
// nothing: it is a Read, and everything that it names is harmless under every
// meaning the name has in the database. If not, why says what stands against
// it. A nil catalogue proves nothing. Asking the same catalogue again costs two
// loads.
//
// Parameters are taken to be of built-in types, or enums: the caller looks at
// the types that a Parse message names.
func (c *Catalog) Proven(s *Statement) (proven bool, why string) {
	switch {
	case c == nil:
		return false, noCatalog
	case !s.Read:
		return false, cmp.Or(s.reason, notRead)
	case s.dependencies == nil:
		return false, neverRead
	}
	v := s.dependencies.result.Load()
	if v == nil || v.catalog != c.id {
		v = &proofResult{catalog: c.id, why: c.against(s.dependencies)}
		s.dependencies.result.Store(v)
	}
	return v.why == "", v.why
}

// against says what stands against a proof, "" if nothing does.
func (c *Catalog) against(n *dependencies) string {
	if why := cmp.Or(n.never, c.facts.Nothing); why != "" {
		return why
	}
	for _, x := range n.names {
		if why := c.name(x); why != "" {
			return why
		}
	}
	return ""
}

func (c *Catalog) name(x neededName) string {
	switch x.kind {
	case relationName:
		return judged(c.facts.Relations, "relation", x.name)
	case functionName:
		return c.function(x.name)
	case operatorName:
		return judged(c.facts.Operators, "operator", x.name)
	case typeName:
		if c.facts.UserRelations[x.name] {
			return "type " + x.name + " is the row type of a relation"
		}
		return judged(c.facts.Types, "type", x.name)
	default:
		if c.facts.Attributes[x.name] || c.wideAttribute && !isASCII(x.name) {
			return "." + strings.ToValidUTF8(x.name, "?") + " may be a function or a domain that is not built in"
		}
		return ""
	}
}

// function judges a call by its name. f(x) can also be a cast to the type f.
func (c *Catalog) function(name string) string {
	if why := judged(c.facts.Functions, "function", name); why != "" {
		return why
	}
	if why, listed := evadesReadOnly(name); listed {
		return "function " + name + ": " + why
	}
	if why := runsOther[name]; why != "" {
		return "function " + name + ": " + why
	}
	if c.facts.Volatile[name] && !harmlessVolatile[name] {
		return "function " + name + " is volatile"
	}
	if c.facts.UserRelations[name] {
		return "function " + name + " has the name of a relation"
	}
	if why := c.facts.Types[name]; why != "" {
		return "function " + name + " has the name of a type: " + why
	}
	return ""
}

func judged(facts map[string]string, what, name string) string {
	why, known := facts[name]
	switch {
	case !known:
		return what + " " + name + " is not known"
	case why != "":
		return what + " " + name + " " + why
	}
	return ""
}
