package guard

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The names of the triggers. Postgres fires triggers in the order of their names, and no
// later one may change the stamp.
const (
	rowTrigger      = `"~fencepost"`
	truncateTrigger = `"~fencepost_truncate"`
)

// Add guards a table, its partitions and its children by inheritance, and returns the
// guard. changed is false if it was so already. conn's role must own the tables, and be a
// superuser or a member of the control role. While transactions use a table, Add tries
// again until ctx ends.
//
// The resource is marked first, in a transaction of its own, so that candidacies that
// begin meanwhile claim their epochs before the first trigger asks for one.
func Add(ctx context.Context, conn *pgx.Conn, o Options) (g Guard, changed bool, err error) {
	err = retry(ctx, conn, func(tx pgx.Tx) (err error) {
		if o.Table, err = find(ctx, tx, o.Table); err == nil {
			g, changed, err = mark(ctx, tx, o)
		}
		return err
	})
	if err != nil || !changed {
		return g, false, err
	}
	err = retry(ctx, conn, func(tx pgx.Tx) (err error) {
		g, err = build(ctx, tx, o)
		return err
	})
	if err != nil { // count without what was not built
		undo := inTransaction(context.WithoutCancel(ctx), conn, func(tx pgx.Tx) error {
			_, err := settle(ctx, tx, o.Resource, 0)
			return err
		})
		if undo != nil {
			return g, false, fmt.Errorf("%w (and the number of guarded tables of the resource is wrong now: %w)", err, undo)
		}
	}
	return g, err == nil, err
}

// find returns a table's name as the server writes it.
func find(ctx context.Context, tx pgx.Tx, table string) (string, error) {
	var name, kind *string
	err := tx.QueryRow(ctx, "SELECT c.oid::regclass::text, c.relkind::text FROM (SELECT to_regclass($1) AS oid) t LEFT JOIN pg_class c ON c.oid = t.oid", table).Scan(&name, &kind)
	switch {
	case err != nil:
		return "", fmt.Errorf("look for table %s: %w", table, err)
	case name == nil:
		return "", fmt.Errorf("there is no table %s in this database: name it with its schema, as in public.invoices", table)
	case *kind != "r" && *kind != "p":
		return "", fmt.Errorf("%s is no table: only tables can be guarded", *name)
	}
	return *name, nil
}

// mark makes the functions of a guard, and marks its resource. It reports false, with the
// guard, if the table is guarded already as o says.
func mark(ctx context.Context, tx pgx.Tx, o Options) (g Guard, needed bool, err error) {
	if err := becomeControl(ctx, tx); err != nil {
		return g, false, err
	}
	list, err := Read(ctx, tx, o.Table)
	if err != nil {
		return g, false, err
	}
	more := 1
	for _, g := range list {
		switch {
		case g.Table != o.Table && g.Resource == o.Resource && g.includes(o.Table):
			return g, false, fmt.Errorf("table %s is guarded as a part of %s: change the guard of that", o.Table, g.Table)
		case g.Resource != o.Resource:
			return g, false, fmt.Errorf("table %s is guarded by resource %q: remove that guard first", g.Table, g.Resource)
		case g.same(o):
			return g, false, nil
		}
		more = 0
	}
	fence, err := settle(ctx, tx, o.Resource, more)
	if err != nil {
		return g, false, err
	}
	for _, stamp := range []string{"", o.Stamp} {
		if _, err := tx.Exec(ctx, "SELECT fencepost.make_guard($1, nullif($2, ''))", fence, stamp); err != nil {
			return g, false, fmt.Errorf("make the function of the guard: %w", err)
		}
	}
	return g, true, nil
}

func (g Guard) includes(table string) bool {
	for _, r := range g.Relations {
		if r.Name == table {
			return true
		}
	}
	return false
}

// relation is a table that a guard needs triggers on.
type relation struct {
	name  string
	kind  string // pg_class.relkind
	clone bool   // a partition, which gets its row trigger from the table above
}

// build makes the triggers, and the column of the stamp.
func build(ctx context.Context, tx pgx.Tx, o Options) (Guard, error) {
	if err := addColumn(ctx, tx, o); err != nil {
		return Guard{}, err
	}
	all, err := tree(ctx, tx, o.Table)
	if err != nil {
		return Guard{}, err
	}
	var old []Relation
	for _, r := range all {
		if r.kind == "f" {
			return Guard{}, fmt.Errorf("%s is a foreign table, which others write unseen: guard the table that it stands for", r.name)
		}
		old = append(old, Relation{Name: r.name})
	}
	if err := dropTriggers(ctx, tx, old); err != nil {
		return Guard{}, err
	}
	if err := makeTriggers(ctx, tx, o, all); err != nil {
		return Guard{}, err
	}
	if _, err := settle(ctx, tx, o.Resource, 0); err != nil {
		return Guard{}, err
	}
	list, err := Read(ctx, tx, o.Table)
	if err != nil {
		return Guard{}, err
	}
	if len(list) != 1 || !list[0].same(o) {
		return Guard{}, fmt.Errorf("table %s is not guarded as it should be, but as %+v: nothing changed; please report this", o.Table, list)
	}
	return list[0], nil
}

// addColumn adds the column of the stamp, if it is missing, without a default, so that
// the table is not rewritten.
func addColumn(ctx context.Context, tx pgx.Tx, o Options) error {
	if o.Stamp == "" {
		return nil
	}
	var found, fits bool
	err := tx.QueryRow(ctx, `SELECT count(*) > 0, coalesce(bool_and(a.atttypid = 'int8'::regtype AND a.attgenerated = '' AND a.attidentity = ''), false)
		FROM pg_attribute a WHERE a.attrelid = $1::text::regclass AND a.attname = $2 AND a.attnum > 0`, o.Table, o.Stamp).Scan(&found, &fits)
	switch {
	case err != nil:
		return fmt.Errorf("look for column %q of table %s: %w", o.Stamp, o.Table, err)
	case found && !fits:
		return fmt.Errorf("column %q of table %s cannot be a stamp: it must be a plain bigint", o.Stamp, o.Table)
	case found:
		return nil
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s bigint", o.Table, quote(o.Stamp))); err != nil {
		return fmt.Errorf("add column %q to table %s: %w", o.Stamp, o.Table, err)
	}
	return nil
}

// tree returns a table, its partitions and its children by inheritance, parents first.
func tree(ctx context.Context, tx pgx.Tx, table string) ([]relation, error) {
	rows, err := tx.Query(ctx, `WITH RECURSIVE tree AS (SELECT $1::text::regclass AS oid, 0 AS depth UNION SELECT i.inhrelid::regclass, t.depth + 1 FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
		SELECT t.oid::text, c.relkind::text, c.relispartition AND max(t.depth) > 0 FROM tree t JOIN pg_class c ON c.oid = t.oid
		GROUP BY t.oid, c.relkind, c.relispartition ORDER BY max(t.depth), 1`, table)
	if err != nil {
		return nil, fmt.Errorf("list the partitions and children of table %s: %w", table, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) { return r, row.Scan(&r.name, &r.kind, &r.clone) })
	if err != nil {
		return nil, fmt.Errorf("list the partitions and children of table %s: %w", table, err)
	}
	return all, nil
}

// dropTriggers drops the triggers of a guard, as far as they are there. The relations are
// in the order of tree, or by name: a copy of a trigger falls with its original.
func dropTriggers(ctx context.Context, tx pgx.Tx, relations []Relation) error {
	for _, r := range relations {
		for _, trigger := range []string{rowTrigger, truncateTrigger} {
			if _, err := tx.Exec(ctx, fmt.Sprintf("DROP TRIGGER IF EXISTS %s ON %s", trigger, r.Name)); err != nil {
				return fmt.Errorf("drop the trigger of table %s: %w", r.Name, err)
			}
		}
	}
	return nil
}

func makeTriggers(ctx context.Context, tx pgx.Tx, o Options, all []relation) error {
	if err := becomeControl(ctx, tx); err != nil {
		return err
	}
	var plain, stamping string
	err := tx.QueryRow(ctx, "SELECT fencepost.make_guard(f.id, NULL), quote_ident(fencepost.make_guard(f.id, nullif($2, ''))) FROM fencepost.fence f WHERE f.resource = $1", o.Resource, o.Stamp).
		Scan(&plain, &stamping)
	if err != nil {
		return fmt.Errorf("look for the functions of the guard: %w", err)
	}
	if err := becomeSelf(ctx, tx); err != nil {
		return err
	}
	for _, r := range all {
		sql := trigger(r, truncateTrigger, "TRUNCATE", "STATEMENT", plain, o)
		if !r.clone {
			sql += trigger(r, rowTrigger, "INSERT OR UPDATE OR DELETE", "ROW", stamping, o)
		}
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("make the trigger of table %s: %w", r.name, err)
		}
	}
	return nil
}

// trigger returns the statements that make a trigger which fires also in sessions with
// session_replication_role = replica.
func trigger(r relation, name, events, level, function string, o Options) string {
	arguments := o.arguments()
	for i, a := range arguments {
		arguments[i] = literal(a)
	}
	return fmt.Sprintf("CREATE TRIGGER %[1]s BEFORE %[2]s ON %[3]s FOR EACH %[4]s EXECUTE FUNCTION fencepost.%[5]s(%[6]s); ALTER TABLE %[3]s ENABLE ALWAYS TRIGGER %[1]s;",
		name, events, r.name, level, function, strings.Join(arguments, ", "))
}

// literal quotes a role's name as an SQL constant.
func literal(s string) string {
	s = "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(s, `\`, `\\`)
	}
	return s
}
