package migrations

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

//go:embed *.sql
var embedded embed.FS

// embeddedRelease returns the release of this binary.
var embeddedRelease = sync.OnceValues(func() (*release, error) { return read(embedded) })

// subjects are the files of the schema, in an order in which they can be applied.
var subjects = []string{"text", "fence", "registry", "grant", "lease", "orders", "handover", "guards", "rejections", "status", "rights"}

// release is the schema of one release.
type release struct {
	sql      string   // makes all of it where there is nothing
	objects  []object // what that makes, in its order
	upgrades []upgrade
}

// version returns the version of the schema. The first release made version 1.
func (r *release) version() int { return 1 + len(r.upgrades) }

// upgrade brings a schema of the version before to its version.
type upgrade struct {
	version   int
	name, sql string
}

func (u upgrade) String() string { return fmt.Sprintf("%03d_%s", u.version, u.name) }

var upgradeName = regexp.MustCompile(`^upgrade_(\d{3})_([a-z0-9_]+)\.sql$`)

// read reads a release. The numbers of its upgrades start at 2 without a gap, so that two branches that
// both add one are noticed.
func read(from fs.FS) (*release, error) {
	names, err := fs.Glob(from, "*.sql") // in the order of their names
	if err != nil {
		return nil, fmt.Errorf("list the files of the schema: %w", err)
	}
	r := &release{}
	texts := make(map[string]string)
	for _, name := range names {
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if parts := upgradeName.FindStringSubmatch(name); parts != nil {
			u := upgrade{name: parts[2], sql: string(text)}
			if u.version, err = strconv.Atoi(parts[1]); err != nil || u.version != r.version()+1 {
				return nil, fmt.Errorf("%s: the next number must be %03d, without gaps and duplicates", name, r.version()+1)
			}
			r.upgrades = append(r.upgrades, u)
			continue
		}
		subject := strings.TrimSuffix(name, ".sql")
		if !slices.Contains(subjects, subject) {
			return nil, fmt.Errorf("%s: it is neither a subject of the schema nor named like upgrade_%03d_words.sql", name, r.version()+1)
		}
		texts[subject] = string(text)
	}
	for _, subject := range subjects {
		if texts[subject] == "" {
			return nil, fmt.Errorf("the file %s.sql of the schema is missing", subject)
		}
		r.sql += texts[subject] + "\n"
	}
	r.objects = objects(r.sql)
	return r, nil
}

// object is something that the schema consists of.
type object struct {
	kind string // "function", "view", "table" or "sequence"
	name string // as Postgres writes it, a function with the types of its arguments
	sql  string // the statement that makes it
}

func (o object) String() string { return o.kind + " " + o.name }

// holdsData reports whether the object holds what cannot be made again.
func (o object) holdsData() bool { return o.kind == "table" || o.kind == "sequence" }

// objectSQL is the beginning of a statement that makes an object. It begins a line; the statements that
// functions run do not.
var objectSQL = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE |UNLOGGED )?(FUNCTION|VIEW|TABLE|SEQUENCE) (fencepost\.\w+)`)

// objects returns what the statements make, in their order.
func objects(sql string) (made []object) {
	for _, at := range objectSQL.FindAllStringSubmatchIndex(sql, -1) {
		o := object{kind: strings.ToLower(sql[at[2]:at[3]]), name: sql[at[4]:at[5]]}
		rest := sql[at[1]:]
		end := strings.Index(rest, ";\n")
		if o.kind == "function" {
			o.name += "(" + strings.Join(argumentTypes(rest), ",") + ")"
			if body := strings.Index(rest, "$$"); body >= 0 && body < end {
				end = body + 2 + strings.Index(rest[body+2:], "$$") + 2
			}
		}
		o.sql = sql[at[0] : at[1]+end]
		made = append(made, o)
	}
	return made
}

// typeNames are the names that Postgres writes for types which the schema abbreviates.
var typeNames = map[string]string{"timestamptz": "timestamp with time zone"}

// argumentTypes returns the types of the arguments at the start of sql, "(a integer, OUT b text) ...",
// without those that are results.
func argumentTypes(sql string) (types []string) {
	list := sql[strings.Index(sql, "(")+1 : strings.Index(sql, ")")]
	for argument := range strings.SplitSeq(list, ",") {
		words := strings.Fields(argument)
		if len(words) == 0 || words[0] == "OUT" {
			continue
		}
		name := strings.Join(words[1:], " ")
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

// Examine looks whether the schema of a database has all its functions, views, tables and sequences. If not,
// problem says what is missing, and remedy what to do; migrate is the command that migrates the database.
// Nothing is known of a schema of another version than this binary's. The search_path of conn must not name
// the schema fencepost.
func Examine(ctx context.Context, conn *pgx.Conn, migrate string) (problem, remedy string, err error) {
	known, err := embeddedRelease()
	if err != nil {
		return "", "", err
	}
	state, err := known.status(ctx, conn)
	if err != nil || state.Version != state.Latest {
		return "", "", err
	}
	lacks, err := missing(ctx, conn, known.objects)
	if err != nil || len(lacks) == 0 {
		return "", "", err
	}
	incomplete := &IncompleteError{missing: lacks}
	return incomplete.problem(), incomplete.Remedy(migrate), nil
}

// IncompleteError means that the schema lacks something that belongs to it.
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
	return "the schema fencepost " + e.problem() + ". " + e.Remedy("fencepost migrate --dsn DSN")
}

// lost reports whether something is missing that holds data.
func (e *IncompleteError) lost() bool { return slices.ContainsFunc(e.missing, object.holdsData) }

// Remedy says what to do. migrate is the command that migrates the database.
func (e *IncompleteError) Remedy(migrate string) string {
	if !e.lost() {
		return "Run: " + migrate + " (it makes again what is missing)"
	}
	return "What tables and sequences held cannot be made again. Restore the schema fencepost with its data from a backup, and run fencepost generation bump --database DATABASE --restored. " +
		"Without a backup, stop all workers, run DROP SCHEMA fencepost CASCADE, and then: " + migrate + " (epochs begin anew, and guards have to be added again)"
}

// complete makes functions and views again: those that the schema lacks or, if all, every one, as after an
// upgrade. It returns what the schema lacked. It fails with an *IncompleteError if that held data.
func (r *release) complete(ctx context.Context, tx pgx.Tx, all bool) (lacked []object, err error) {
	lacked, err = missing(ctx, tx.Conn(), r.objects)
	if err != nil {
		return nil, err
	}
	if incomplete := (&IncompleteError{missing: lacked}); incomplete.lost() {
		return nil, incomplete
	}
	for _, o := range r.objects {
		if o.holdsData() || !all && !slices.Contains(lacked, o) {
			continue
		}
		if _, err := tx.Exec(ctx, o.sql); err != nil {
			return nil, fmt.Errorf("make the %s again: %w", o, explain(err))
		}
	}
	return lacked, nil
}

// clearUnused makes room for the schema where there is one without a version. If it never had a row, as after
// pg_dump --schema-only, it drops all of it but the functions of triggers: those of guards are on tables of the
// application. Otherwise its table of versions was lost, and it returns an *IncompleteError.
func clearUnused(ctx context.Context, tx pgx.Tx) error {
	var views, routines, tables, sequences, holdsRows *string
	if err := tx.QueryRow(ctx, contentsSQL).Scan(&views, &routines, &tables, &sequences, &holdsRows); err != nil {
		return fmt.Errorf("look for what is in the schema fencepost: %w", err)
	}
	if holdsRows == nil { // there is no fence
		return nil
	}
	used := "SELECT " + *holdsRows + " OR EXISTS (SELECT FROM pg_catalog.pg_sequences s WHERE s.schemaname = 'fencepost' AND s.last_value IS NOT NULL)"
	for _, mode := range []string{"ACCESS SHARE", "ACCESS EXCLUSIVE"} { // nobody who uses the schema has to wait for the first look
		if _, err := tx.Exec(ctx, "LOCK TABLE "+*tables+" IN "+mode+" MODE"); err != nil {
			return fmt.Errorf("lock the tables of the schema fencepost: %w", err)
		}
		var is bool // a sequence shows it, if someone has deleted the rows
		if err := tx.QueryRow(ctx, used).Scan(&is); err != nil {
			return fmt.Errorf("find out whether the schema fencepost was used: %w", err)
		}
		if is {
			return &IncompleteError{missing: []object{{kind: "table", name: "fencepost.schema_version with its rows"}}}
		}
	}
	for _, drop := range []struct {
		kind  string
		names *string
	}{{"VIEW", views}, {"ROUTINE", routines}, {"TABLE", tables}, {"SEQUENCE", sequences}} {
		if drop.names == nil {
			continue
		}
		if _, err := tx.Exec(ctx, "DROP "+drop.kind+" "+*drop.names); err != nil {
			return fmt.Errorf("drop what a dump without data has left of the schema fencepost: %w", explain(err))
		}
	}
	return makeVersions(ctx, tx)
}

// contentsSQL lists what is in the schema, without the functions of triggers and the sequences that belong to tables. The
// last column is a condition, whether a table has a row.
const contentsSQL = `WITH relations AS (SELECT c.oid::regclass::text AS name, c.relkind, c.relname FROM pg_catalog.pg_class c
		WHERE c.relnamespace = 'fencepost'::regnamespace AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
			WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND c.relkind = 'S' AND d.deptype = 'i'))
	SELECT string_agg(name, ', ') FILTER (WHERE relkind = 'v'),
		(SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_catalog.pg_proc p WHERE p.pronamespace = 'fencepost'::regnamespace AND p.prorettype <> 'trigger'::regtype),
		string_agg(name, ', ') FILTER (WHERE relkind = 'r'),
		string_agg(name, ', ') FILTER (WHERE relkind = 'S'),
		CASE WHEN bool_or(relname = 'fence' AND relkind = 'r') THEN string_agg(format('EXISTS (SELECT FROM %s)', name), ' OR ') FILTER (WHERE relkind = 'r') END
	FROM relations`

// orphans returns the tables whose guards have no fence, because the schema was made anew: they refuse every write.
func orphans(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `SELECT DISTINCT t.tgrelid::regclass::text FROM pg_catalog.pg_trigger t JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgparentid = 0 AND p.pronamespace = 'fencepost'::regnamespace AND p.proname ~ '^guard_[0-9]+(_|$)' ORDER BY 1`)
	if err != nil {
		return nil, fmt.Errorf("look for guards of an earlier schema: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for guards of an earlier schema: %w", err)
	}
	return names, nil
}
