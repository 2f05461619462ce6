package fencing

import (
	"strings"
	"sync/atomic"
	"unicode/utf8"
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
	// WideAttribute: a name in Attributes is not ASCII, so that others may be the
	// same name in another encoding.
	WideAttribute bool
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
	facts Facts
	id    uint64
}

// catalogs numbers the catalogues of this process.
var catalogs atomic.Uint64

// NewCatalog makes a catalog of facts, which must not change any more.
func NewCatalog(f Facts) *Catalog {
	for name := range f.Attributes {
		f.WideAttribute = f.WideAttribute || strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf })
	}
	return &Catalog{facts: f, id: catalogs.Add(1)}
}

// ID is the number of the catalog. No other of this process has it.
func (c *Catalog) ID() uint64 { return c.id }

// Facts are what the catalog was made of. They must not be changed.
func (c *Catalog) Facts() *Facts { return &c.facts }
