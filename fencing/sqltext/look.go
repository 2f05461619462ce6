package sqltext

import (
	"strings"

	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// findings is what the whole tree of a statement shows, at any depth.
type findings struct {
	writes         string // why it is not a read, "" if it may be one
	function       string // the same, for reasons that concern functions
	queryText      bool   // names something that shows ownText
	keptText       bool   // names something that shows keptText
	unsetsReadOnly bool   // set_config of a setting that may undo read-only mode
}

// look walks the tree below n.
func look(n *pgquery.Node) findings {
	var w findings
	if n != nil {
		w.message(n.ProtoReflect())
	}
	return w
}

func (w *findings) message(m protoreflect.Message) {
	switch n := m.Interface().(type) {
	case *pgquery.InsertStmt, *pgquery.UpdateStmt, *pgquery.DeleteStmt, *pgquery.MergeStmt:
		w.write("it modifies rows")
	case *pgquery.IntoClause:
		w.write("INTO creates a table")
	case *pgquery.LockingClause:
		w.write("it locks rows")
	case *pgquery.RangeVar:
		w.shows(n.Relname)
	case *pgquery.FuncCall:
		w.call(n)
	}
	eachMessage(m, w.message)
}

// eachMessage calls visit for every message directly below m.
func eachMessage(m protoreflect.Message, visit func(protoreflect.Message)) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.Message() == nil:
		case fd.IsList():
			for i, l := 0, v.List(); i < l.Len(); i++ {
				visit(l.Get(i).Message())
			}
		default:
			visit(v.Message())
		}
		return true
	})
}

func (w *findings) write(why string) {
	if w.writes == "" {
		w.writes = why
	}
}

func (w *findings) shows(name string) {
	shown := queryTextNames[name]
	w.queryText = w.queryText || shown == ownText
	w.keptText = w.keptText || shown == keptText
}

// call examines one function call. It ignores the schema: a function of the same name
// in another schema is treated in the same way.
func (w *findings) call(f *pgquery.FuncCall) {
	if len(f.Funcname) == 0 {
		return
	}
	name := f.Funcname[len(f.Funcname)-1].GetString_().GetSval()
	w.shows(name)
	why, listed := evadesReadOnly(name)
	if name == "set_config" && setsTransactionMode(f.Args) {
		w.unsetsReadOnly = true
		why, listed = "it can undo read-only mode", true
	}
	if listed {
		w.function = name + ": " + why
		w.write(w.function)
	}
}

// setsTransactionMode reports whether set_config with these arguments may set
// transaction_read_only. It may, unless its first argument is a constant that names
// another setting. A cast of the constant may truncate it, unless it is a cast to text.
func setsTransactionMode(args []*pgquery.Node) bool {
	if len(args) == 0 {
		return true
	}
	c := args[0].GetAConst()
	if cast := args[0].GetTypeCast(); cast != nil && isPlainText(cast.TypeName) {
		c = cast.GetArg().GetAConst()
	}
	if c.GetSval() == nil {
		return true
	}
	return strings.EqualFold(c.GetSval().Sval, "transaction_read_only")
}

// isPlainText reports whether t is the type text, by its unqualified name. Another type
// of that name is never proven harmless.
func isPlainText(t *pgquery.TypeName) bool {
	return len(t.Names) > 0 && t.Names[len(t.Names)-1].GetString_().GetSval() == "text" && len(t.Typmods) == 0 && len(t.ArrayBounds) == 0
}
