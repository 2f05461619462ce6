package sqltext

import (
	"cmp"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// Why no catalog proves a text.
const (
	noCatalog = "nothing is known of the database's catalog now"
	notRead   = "it is not a read"
	neverRead = "its names were not looked at"
)

// Proven reports whether s changes nothing, whoever runs it and whatever the
// search_path: it is a Read, and everything that it names is harmless under every
// meaning that the name has in the database. If not, why is the reason. A nil catalog
// proves nothing. Repeating the call with the same catalog costs two loads.
//
// Parameters are assumed to be of built-in types or enums: the caller must check the
// types that a Parse message names.
func Proven(c *fencing.Catalog, s *Statement) (proven bool, why string) {
	switch {
	case c == nil:
		return false, noCatalog
	case !s.Read:
		return false, cmp.Or(s.reason, notRead)
	case s.dependencies == nil:
		return false, neverRead
	}
	v := s.dependencies.result.Load()
	if v == nil || v.catalog != c.ID() {
		v = &proofResult{catalog: c.ID(), why: facts{c.Facts()}.against(s.dependencies)}
		s.dependencies.result.Store(v)
	}
	return v.why == "", v.why
}

// facts looks up names in the facts of a catalog.
type facts struct{ *fencing.Facts }

// against returns what prevents a proof, "" if nothing does.
func (f facts) against(n *dependencies) string {
	if why := cmp.Or(n.never, f.Nothing); why != "" {
		return why
	}
	for _, x := range n.names {
		if why := f.name(x); why != "" {
			return why
		}
	}
	return ""
}

func (f facts) name(x neededName) string {
	switch x.kind {
	case relationName:
		return unproven(f.Relations, "relation", x.name)
	case functionName:
		return f.function(x.name)
	case operatorName:
		return unproven(f.Operators, "operator", x.name)
	case typeName:
		if f.UserRelations[x.name] {
			return "type " + x.name + " is the row type of a relation"
		}
		return unproven(f.Types, "type", x.name)
	default:
		if f.Attributes[x.name] || f.WideAttribute && !isASCII([]byte(x.name)) {
			return "." + strings.ToValidUTF8(x.name, "?") + " may be a function or a domain that is not built in"
		}
		return ""
	}
}

// function examines a call by its name. f(x) can also be a cast to the type f, unless that is the row type of a relation
// (FuncNameAsType of PostgreSQL).
func (f facts) function(name string) string {
	if why := unproven(f.Functions, "function", name); why != "" {
		return why
	}
	if why, listed := evadesReadOnly(name); listed {
		return "function " + name + ": " + why
	}
	if why := runsOther[name]; why != "" {
		return "function " + name + ": " + why
	}
	if f.Volatile[name] && !harmlessVolatile[name] {
		return "function " + name + " is volatile"
	}
	if why := f.Types[name]; why != "" {
		return "function " + name + " has the name of a type: " + why
	}
	return ""
}

func unproven(known map[string]string, what, name string) string {
	why, listed := known[name]
	switch {
	case !listed:
		return what + " " + name + " is not known"
	case why != "":
		return what + " " + name + " " + why
	}
	return ""
}
