package fencing

import (
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// Facts is what a database's catalog says about its names, in whatever schema they are.
// In each map, the value "" means that everything of that name is harmless, and any
// other value says why something is not. A name that is in no map does not exist, or
// was created after the facts were read.
type Facts struct {
	// Relations are those that can be read without running anything that is not built
	// in. The map holds every relation.
	Relations map[string]string
	// Functions are built in and call nothing but themselves. Aggregates and window
	// functions count as functions.
	Functions map[string]string
	// Volatile are the volatile built-in functions among Functions.
	Volatile map[string]bool
	// Attributes are user-defined functions that can be written as x.name, and domains
	// that a row can be cast to in that way.
	Attributes map[string]bool
	// WideAttribute means that a name in Attributes is not ASCII, so that other
	// spellings may be the same name in another encoding.
	WideAttribute bool
	// Operators are built in, and no operand of a built-in type can select another
	// operator of that name.
	Operators map[string]string
	// Types are built-in types, enums, and arrays of these. The row types of users'
	// relations are covered by Relations.
	Types map[string]string
	// UserRelations are the relations whose row type is not built in.
	UserRelations map[string]bool
	// Nothing, if not empty, says why no read at all can be proven: a user's code can
	// run in places where no name shows it.
	Nothing string
}

// Catalog is an immutable snapshot of what a database's names mean. It is safe for
// concurrent use and must not be copied.
type Catalog struct {
	facts Facts
	id    uint64
}

// catalogs counts the catalogs made in this process.
var catalogs atomic.Uint64

// NewCatalog returns a catalog made of f. The caller must not change f's maps
// afterwards.
func NewCatalog(f Facts) *Catalog {
	for name := range f.Attributes {
		f.WideAttribute = f.WideAttribute || strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf })
	}
	return &Catalog{facts: f, id: catalogs.Add(1)}
}

// ID returns the catalog's number, which is unique in this process.
func (c *Catalog) ID() uint64 { return c.id }

// Facts returns what the catalog was made of. The caller must not change it.
func (c *Catalog) Facts() *Facts { return &c.facts }
