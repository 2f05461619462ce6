package migrations

import (
	"context"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// object is something that the migrations make in the schema fencepost.
type object struct {
	kind string // "function", "view", "table" or "sequence"
	name string // as Postgres writes it, a function with the types of its arguments
	sql  string // the statement that makes it, of the last migration that has one
}

func (o object) String() string { return o.kind + " " + o.name }

// holdsData reports whether the object holds what cannot be made again.
func (o object) holdsData() bool { return o.kind == "table" || o.kind == "sequence" }

// objectSQL is the beginning of a statement that makes or drops an object. It begins a line of a migration;
// the statements that functions run do not.
var objectSQL = regexp.MustCompile(`^(CREATE|DROP) (?:OR REPLACE |UNLOGGED )?(FUNCTION|VIEW|TABLE|SEQUENCE) (fencepost\.\w+)`)

// statements yields where the statements of sql that make and drop objects begin. The expression costs too
// much for the whole text: a proxy asks with every examination of a database.
func statements(sql string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for rest := sql; rest != ""; {
			if (strings.HasPrefix(rest, "CREATE ") || strings.HasPrefix(rest, "DROP ")) && !yield(rest) {
				return
			}
			_, rest, _ = strings.Cut(rest, "\n")
		}
	}
}

// objects returns what the files make, and do not drop again: functions and views in the order in which
// they can be made.
func objects(files []file) []object {
	var made []object
	for _, f := range files {
		for sql := range statements(f.sql) {
			at := objectSQL.FindStringSubmatchIndex(sql)
			if at == nil {
				continue
			}
			verb, rest := sql[at[2]:at[3]], sql[at[1]:]
			o := object{kind: strings.ToLower(sql[at[4]:at[5]]), name: sql[at[6]:at[7]]}
			end := strings.Index(rest, ";\n")
			if o.kind == "function" {
				o.name += "(" + strings.Join(argumentTypes(rest, verb == "CREATE"), ",") + ")"
				if body := strings.Index(rest, "$$"); verb == "CREATE" && body >= 0 && body < end {
					end = body + 2 + strings.Index(rest[body+2:], "$$") + 2
				}
			}
			o.sql = sql[:at[1]+end]
			if i := slices.IndexFunc(made, func(m object) bool { return m.String() == o.String() }); i >= 0 {
				made = slices.Delete(made, i, i+1)
			}
			if verb == "CREATE" {
				made = append(made, o)
			}
		}
	}
	slices.SortStableFunc(made, func(a, b object) int { return strings.Compare(a.kind, b.kind) }) // functions before views
	return made
}

// typeNames are the names that Postgres writes for types which the migrations abbreviate.
var typeNames = map[string]string{"timestamptz": "timestamp with time zone"}

// argumentTypes returns the types of the arguments at the start of sql, "(a integer, OUT b text) ...",
// without those that are results. Unless named, the arguments are types alone.
func argumentTypes(sql string, named bool) (types []string) {
	list := sql[strings.Index(sql, "(")+1 : strings.Index(sql, ")")]
	for argument := range strings.SplitSeq(list, ",") {
		words := strings.Fields(argument)
		if len(words) == 0 || words[0] == "OUT" {
			continue
		}
		if named {
			words = words[1:]
		}
		name := strings.Join(words, " ")
		if known := typeNames[name]; known != "" {
			name = known
		}
		types = append(types, name)
	}
	return types
}

const presentSQL = `SELECT 'function ' || p.oid::regprocedure FROM pg_catalog.pg_proc p
	WHERE p.pronamespace = pg_catalog.to_regnamespace('fencepost') AND p.proname = ANY ($1)
	UNION ALL SELECT CASE c.relkind WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' ELSE 'table ' END || c.oid::regclass FROM pg_catalog.pg_class c
	WHERE c.relnamespace = pg_catalog.to_regnamespace('fencepost') AND c.relname = ANY ($1) AND c.relkind IN ('r', 'p', 'v', 'S')`

// missing returns those of the objects that the database does not have. The search_path of conn must not name
// the schema fencepost.
func missing(ctx context.Context, conn *pgx.Conn, made []object) ([]object, error) {
	names := make([]string, 0, len(made))
	for _, o := range made {
		name, _, _ := strings.Cut(strings.TrimPrefix(o.name, "fencepost."), "(")
		names = append(names, name)
	}
	rows, err := conn.Query(ctx, presentSQL, names)
	if err != nil {
		return nil, fmt.Errorf("look for the functions and tables of the schema fencepost: %w", err)
	}
	present, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for the functions and tables of the schema fencepost: %w", err)
	}
	for i := range present {
		present[i] = strings.ReplaceAll(present[i], `"`, "") // Postgres quotes key words, such as grant
	}
	return slices.DeleteFunc(slices.Clone(made), func(o object) bool { return slices.Contains(present, o.String()) }), nil
}

// applied returns those of the files that have been applied to a database.
func applied(files []file, to []Applied) []file {
	return slices.DeleteFunc(slices.Clone(files), func(f file) bool {
		return !slices.ContainsFunc(to, func(a Applied) bool { return a.Version == f.version })
	})
}

// Examine looks whether the schema of a database has all functions, views, tables and sequences that the
// migrations which were applied to it have made. If not, problem says what is missing, and remedy what to do;
// migrate is the command that migrates the database. Nothing is known of a schema that is newer than this
// binary. The search_path of conn must not name the schema fencepost.
func Examine(ctx context.Context, conn *pgx.Conn, migrate string) (problem, remedy string, err error) {
	files, err := list(embedded)
	if err != nil {
		return "", "", err
	}
	state, err := Status(ctx, conn)
	if err != nil || state.Version > state.Latest {
		return "", "", err
	}
	lacks, err := missing(ctx, conn, objects(applied(files, state.Applied)))
	if err != nil || len(lacks) == 0 {
		return "", "", err
	}
	incomplete := &IncompleteError{missing: lacks}
	return incomplete.problem(), incomplete.Remedy(migrate), nil
}

// IncompleteError means that the schema lacks something that its migrations have made.
type IncompleteError struct{ missing []object }

// namedObjects bounds how many missing objects an error names.
const namedObjects = 3

func (e *IncompleteError) problem() string {
	var names []string
	slices.SortStableFunc(e.missing, func(a, b object) int { // functions may be missing because of the types of tables
		switch {
		case a.holdsData() == b.holdsData():
			return 0
		case a.holdsData():
			return -1
		default:
			return 1
		}
	})
	for _, o := range e.missing[:min(namedObjects, len(e.missing))] {
		names = append(names, o.String())
	}
	if more := len(e.missing) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return "lacks " + strings.Join(names, ", ")
}

func (e *IncompleteError) Error() string {
	return "the schema fencepost " + e.problem() + ". " + e.Remedy("fencepost migrate")
}

// lost reports whether something is missing that holds data.
func (e *IncompleteError) lost() bool { return slices.ContainsFunc(e.missing, object.holdsData) }

// Remedy says what to do. migrate is the command that migrates the database.
func (e *IncompleteError) Remedy(migrate string) string {
	if !e.lost() {
		return "Run: " + migrate + " (it makes again what is missing)"
	}
	return "What tables and sequences held cannot be made again. Restore the schema fencepost with its data from a backup, and run fencepost generation bump --restored. " +
		"Without a backup, stop all workers, run DROP SCHEMA fencepost CASCADE, and then: " + migrate + " (epochs begin anew, and guards have to be added again)"
}

// repair makes again what the schema lacks of what those of the files have made that were applied, and returns its names. It fails with
// an *IncompleteError if that would lose data.
func repair(ctx context.Context, tx pgx.Tx, files []file) (repaired []string, err error) {
	state, err := Status(ctx, tx.Conn())
	if err != nil {
		return nil, err
	}
	lacks, err := missing(ctx, tx.Conn(), objects(applied(files, state.Applied)))
	if err != nil || len(lacks) == 0 {
		return nil, err
	}
	if incomplete := (&IncompleteError{missing: lacks}); incomplete.lost() {
		return nil, incomplete
	}
	if _, err := tx.Exec(ctx, "SET LOCAL check_function_bodies = off"); err != nil { // they may need each other
		return nil, fmt.Errorf("prepare to make again what is missing: %w", err)
	}
	for _, o := range lacks {
		if _, err := tx.Exec(ctx, o.sql); err != nil {
			return nil, fmt.Errorf("make the missing %s again: %w", o, explain(err))
		}
		repaired = append(repaired, o.String())
	}
	if _, err := tx.Exec(ctx, "SET LOCAL check_function_bodies = on"); err != nil {
		return nil, fmt.Errorf("make again what is missing: %w", err)
	}
	return repaired, nil
}

// unversioned returns an *IncompleteError if the schema, which has no version, is not empty: its table of versions
// was lost.
func unversioned(ctx context.Context, tx pgx.Tx) error {
	var empty bool
	err := tx.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relname = 'fence' AND c.relkind = 'r')`).Scan(&empty)
	switch {
	case err != nil:
		return fmt.Errorf("look for tables of the schema fencepost: %w", err)
	case !empty:
		return &IncompleteError{missing: []object{{kind: "table", name: "fencepost.schema_version"}}}
	}
	return nil
}
