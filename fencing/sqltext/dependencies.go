package sqltext

import (
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"
	"unsafe"

	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// nameKind says what a name in a statement refers to.
type nameKind uint8

const (
	relationName nameKind = iota
	functionName
	operatorName
	typeName
	// attributeName is a name after a dot: a column, or a function of one argument in
	// attribute notation.
	attributeName
)

// dependencies are the names that a statement depends on. The statement is harmless if
// each of them is. It is immutable except for the result.
type dependencies struct {
	names []neededName
	// never says why no catalog can prove the statement.
	never  string
	result atomic.Pointer[proofResult] // of the catalog that was last used
}

type neededName struct {
	kind nameKind
	name string
}

type proofResult struct {
	catalog uint64
	why     string // "" if proven
}

// size returns the approximate size of n in bytes.
func (n *dependencies) size() int {
	if n == nil {
		return 0
	}
	size := int(unsafe.Sizeof(*n)) + int(unsafe.Sizeof(proofResult{})) + len(n.never)
	for _, x := range n.names {
		size += int(unsafe.Sizeof(x)) + len(x.name)
	}
	return size
}

// dependenciesOf collects the names of a statement that is a Read.
func dependenciesOf(n *pgquery.Node, st *Statement) *dependencies {
	w := proofWalk{dependencies: &dependencies{}}
	query := n
	switch {
	case st.Kind != Ordinary && st.Kind != ByMessage:
		w.fail("a command of the session")
	case n.GetFetchStmt() != nil, n.GetClosePortalStmt() != nil:
		return w.dependencies // everything else was proven where the cursor was declared
	case n.GetDeclareCursorStmt() != nil:
		query = n.GetDeclareCursorStmt().Query
	case n.GetExplainStmt() != nil:
		query = n.GetExplainStmt().Query
	case n.GetCopyStmt() != nil:
		query = n.GetCopyStmt().Query
		if query == nil {
			w.relation(n.GetCopyStmt().Relation, nil)
			return w.dependencies
		}
	}
	if query.GetSelectStmt() == nil {
		w.fail("not a plain query")
		return w.dependencies
	}
	w.visit(query.GetSelectStmt().ProtoReflect(), nil)
	return w.dependencies
}

// proofWalk collects the dependencies of a tree. A part of the grammar that it does not
// know makes the statement unprovable.
type proofWalk struct{ dependencies *dependencies }

// scope is the names of WITH that hide relations, innermost first.
type scope struct {
	name  string
	outer *scope
}

func (s *scope) has(name string) bool {
	for ; s != nil; s = s.outer {
		if s.name == name {
			return true
		}
	}
	return false
}

func (w *proofWalk) fail(why string) {
	if w.dependencies.never == "" {
		w.dependencies.never = why
	}
}

// add records a name. A name that could mean something else to the server than to the
// grammar prevents a proof: a name that may be truncated, or whose bytes stand for
// other letters in another encoding.
func (w *proofWalk) add(kind nameKind, name string) {
	const longest = 62 // one less than the length to which the server truncates names
	switch {
	case name == "":
		w.fail("the parse tree lacks a name")
	case kind == attributeName:
	case len(name) > longest:
		w.fail("the name " + name + " is long enough to be cut")
	case !isASCII([]byte(name)):
		w.fail("the name " + strings.ToValidUTF8(name, string(utf8.RuneError)) + " is not ASCII")
	}
	x := neededName{kind, name}
	if !slices.Contains(w.dependencies.names, x) {
		w.dependencies.names = append(w.dependencies.names, x)
	}
}

func (w *proofWalk) operators(names ...string) {
	for _, name := range names {
		w.add(operatorName, name)
	}
}

// last adds the last part of a qualified name: everything of that name must be
// harmless, in whatever schema it is.
func (w *proofWalk) last(kind nameKind, parts []*pgquery.Node) {
	if len(parts) == 0 {
		w.fail("the parse tree lacks a name")
		return
	}
	w.add(kind, parts[len(parts)-1].GetString_().GetSval())
}

func (w *proofWalk) relation(r *pgquery.RangeVar, in *scope) {
	if r.GetSchemaname() == "" && in.has(r.GetRelname()) {
		return
	}
	w.add(relationName, r.GetRelname())
}

// visit walks the tree below m. Only what is listed here or in plainNodes can be part
// of a proof.
func (w *proofWalk) visit(m protoreflect.Message, in *scope) {
	switch n := m.Interface().(type) {
	case *pgquery.SelectStmt:
		w.query(n, in)
		return
	case *pgquery.RangeVar:
		w.relation(n, in)
	case *pgquery.FuncCall:
		w.last(functionName, n.Funcname)
	case *pgquery.TypeName:
		w.typ(n)
	case *pgquery.A_Expr:
		w.expression(n)
	case *pgquery.SubLink:
		w.subLink(n)
	case *pgquery.ColumnRef:
		w.attributes(n.Fields[min(1, len(n.Fields)):])
	case *pgquery.A_Indirection:
		w.attributes(n.Indirection)
	case *pgquery.CaseExpr:
		if n.Arg != nil {
			w.operators("=")
		}
	case *pgquery.JoinExpr:
		if n.IsNatural || len(n.UsingClause) > 0 {
			w.operators("=")
		}
	case *pgquery.SortBy:
		if len(n.UseOp) > 0 {
			w.last(operatorName, n.UseOp)
		}
	default:
		if !plainNodes[m.Descriptor().Name()] {
			w.fail("it has a part that is never proven: " + string(m.Descriptor().Name()))
			return
		}
	}
	eachMessage(m, func(child protoreflect.Message) { w.visit(child, in) })
}

// plainNodes are the parts of a tree that do nothing themselves, or only what their own
// parts do.
var plainNodes = map[protoreflect.Name]bool{
	"Node": true, "List": true, "String": true, "Integer": true, "Float": true, "Boolean": true, "BitString": true,
	"A_Const": true, "A_Star": true, "A_Indices": true, "A_ArrayExpr": true, "ParamRef": true,
	"ResTarget": true, "Alias": true, "RangeSubselect": true, "RangeFunction": true, "ColumnDef": true,
	"BoolExpr": true, "NullTest": true, "BooleanTest": true, "CaseWhen": true, "CoalesceExpr": true,
	"MinMaxExpr": true, "RowExpr": true, "TypeCast": true, "CollateClause": true, "SQLValueFunction": true,
	"NamedArgExpr": true, "GroupingSet": true, "GroupingFunc": true, "WindowDef": true,
}

// query walks one SELECT, VALUES or TABLE. A name of its WITH hides relations after its
// definition, and with WITH RECURSIVE everywhere.
func (w *proofWalk) query(s *pgquery.SelectStmt, in *scope) {
	if with := s.WithClause; with != nil {
		if with.Recursive {
			for _, c := range with.Ctes {
				in = &scope{c.GetCommonTableExpr().GetCtename(), in}
			}
		}
		for _, c := range with.Ctes {
			cte := c.GetCommonTableExpr()
			if cte.GetSearchClause() != nil || cte.GetCycleClause() != nil {
				w.fail("SEARCH and CYCLE are never proven")
			}
			if cte.GetCtequery() == nil {
				w.fail("the parse tree lacks the query of a WITH")
				continue
			}
			w.visit(cte.Ctequery.ProtoReflect(), in)
			if !with.Recursive {
				in = &scope{cte.Ctename, in}
			}
		}
	}
	m := s.ProtoReflect()
	with := m.Descriptor().Fields().ByName("with_clause")
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd == with, fd.Message() == nil:
		case fd.IsList():
			for i, l := 0, v.List(); i < l.Len(); i++ {
				w.visit(l.Get(i).Message(), in)
			}
		default:
			w.visit(v.Message(), in)
		}
		return true
	})
}

func (w *proofWalk) typ(t *pgquery.TypeName) {
	if t.Setof || t.PctType || t.TypeOid != 0 {
		w.fail("a type that is not named plainly")
		return
	}
	w.last(typeName, t.Names)
}

// expression adds the operators of an expression, including those that keywords stand
// for.
func (w *proofWalk) expression(e *pgquery.A_Expr) {
	switch e.Kind {
	case pgquery.A_Expr_Kind_AEXPR_OP, pgquery.A_Expr_Kind_AEXPR_OP_ANY, pgquery.A_Expr_Kind_AEXPR_OP_ALL,
		pgquery.A_Expr_Kind_AEXPR_DISTINCT, pgquery.A_Expr_Kind_AEXPR_NOT_DISTINCT, pgquery.A_Expr_Kind_AEXPR_NULLIF,
		pgquery.A_Expr_Kind_AEXPR_IN, pgquery.A_Expr_Kind_AEXPR_LIKE, pgquery.A_Expr_Kind_AEXPR_ILIKE,
		pgquery.A_Expr_Kind_AEXPR_SIMILAR:
		w.last(operatorName, e.Name)
	case pgquery.A_Expr_Kind_AEXPR_BETWEEN, pgquery.A_Expr_Kind_AEXPR_NOT_BETWEEN,
		pgquery.A_Expr_Kind_AEXPR_BETWEEN_SYM, pgquery.A_Expr_Kind_AEXPR_NOT_BETWEEN_SYM:
		w.operators("<", "<=", ">", ">=")
	default:
		w.fail("it has an expression that is never proven: " + e.Kind.String())
	}
}

func (w *proofWalk) subLink(s *pgquery.SubLink) {
	switch {
	case len(s.OperName) > 0:
		w.last(operatorName, s.OperName)
	case s.SubLinkType == pgquery.SubLinkType_ANY_SUBLINK: // IN
		w.operators("=")
	}
}

// attributes adds the names after dots: x.f may be the function f of x.
func (w *proofWalk) attributes(fields []*pgquery.Node) {
	for _, f := range fields {
		if f.GetString_() != nil {
			w.add(attributeName, f.GetString_().Sval)
		}
	}
}
