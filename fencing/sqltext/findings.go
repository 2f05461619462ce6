package sqltext

import (
	"cmp"
	"strings"

	pgquery "github.com/pganalyze/pg_query_go/v6"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// findings is what the whole tree of a statement shows, at any depth.
type findings struct {
	writes   string // why it is not a read, "" if it may be one
	function string // the same, for reasons that concern functions
	effects  Effect // of the functions that it calls
	others   bool   // there is another reason than UnsetsReadOnly why it is not a read, or the setting is named
}

// onlyUnsets reports whether nothing keeps it from being a read but a set_config of who knows what.
func (w *findings) onlyUnsets() bool { return w.effects&UnsetsReadOnly != 0 && !w.others }

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
	w.others = true
	if w.writes == "" {
		w.writes = why
	}
}

// call examines one function call. It ignores the schema: a function of the same name
// in another schema is treated in the same way.
func (w *findings) call(f *pgquery.FuncCall) {
	if len(f.Funcname) == 0 {
		return
	}
	name := f.Funcname[len(f.Funcname)-1].GetString_().GetSval()
	why, listed := evadesReadOnly(name)
	if listed {
		w.function = name + ": " + why
		w.effects |= EvadesReadOnly
		w.write(w.function)
	}
	if name != "set_config" {
		return
	}
	w.effects |= SetsConfig
	if setting := settingOf(f.Args); setting == nil || strings.EqualFold(setting.Sval, "transaction_read_only") {
		w.effects |= UnsetsReadOnly | EvadesReadOnly
		w.function = name + ": it can undo read-only mode"
		w.writes = cmp.Or(w.writes, w.function)
		w.others = w.others || setting != nil
	}
}

// settingOf returns the setting that set_config with these arguments sets. It is nil if that is
// not known, because its first argument is no constant. A cast of the constant may truncate it,
// unless it is a cast to text.
func settingOf(args []*pgquery.Node) *pgquery.String {
	if len(args) == 0 {
		return nil
	}
	c := args[0].GetAConst()
	if cast := args[0].GetTypeCast(); cast != nil && isPlainText(cast.TypeName) {
		c = cast.GetArg().GetAConst()
	}
	return c.GetSval()
}

// isPlainText reports whether t is the type text, by its unqualified name. Another type
// of that name is never proven harmless.
func isPlainText(t *pgquery.TypeName) bool {
	return len(t.Names) > 0 && t.Names[len(t.Names)-1].GetString_().GetSval() == "text" && len(t.Typmods) == 0 && len(t.ArrayBounds) == 0
}
