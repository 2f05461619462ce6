package guard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Add guards a table, its partitions and its children by inheritance, and returns the
// guard. changed is false if it was so already. conn's role must own the tables, and be a
// superuser or a member of the control role. While transactions use a table, Add tries
// again until ctx ends.
//
// The resource is marked first, in a transaction of its own, so that candidacies that
// begin meanwhile claim their epochs before the first trigger asks for one.
func Add(ctx context.Context, conn *pgx.Conn, o Options) (g Guard, changed bool, err error) {
	err = retry(ctx, conn, func(ctx context.Context, tx pgx.Tx) (err error) {
		g, changed, err = mark(ctx, tx, o)
		return err
	})
	if err != nil || !changed {
		return g, false, err
	}
	err = retry(ctx, conn, func(ctx context.Context, tx pgx.Tx) (err error) {
		g, err = build(ctx, tx, o)
		return err
	})
	if err != nil && !errors.Is(err, errOutcomeUnknown) { // forget what was not built
		undo := inTransaction(context.WithoutCancel(ctx), conn, func(ctx context.Context, tx pgx.Tx) error {
			t, err := find(ctx, tx, o.Table)
			if err == nil {
				_, err = record(ctx, tx, o.Resource, 0, t.name)
			}
			return err
		})
		if undo != nil {
			return g, false, fmt.Errorf("%w (and the table may stay recorded as guarded: see fencepost guard list: %w)", err, undo)
		}
	}
	return g, err == nil, err
}

// relation is a table that a guard needs triggers on.
type relation struct {
	oid   uint32
	name  string // as the server writes it, with its schema
	kind  string // pg_class.relkind
	clone bool   // a partition, which gets its row trigger from the table above
}

// find returns a table. If there is none, its oid is 0, and its name is that which was
// given.
func find(ctx context.Context, tx pgx.Tx, table string) (relation, error) {
	var r relation
	err := tx.QueryRow(ctx, `SELECT coalesce(c.oid, 0), coalesce(c.oid::regclass::text, $1), coalesce(c.relkind::text, '')
		FROM (SELECT to_regclass($1) AS oid) t LEFT JOIN pg_class c ON c.oid = t.oid`, table).Scan(&r.oid, &r.name, &r.kind)
	if err != nil {
		return r, fmt.Errorf("look for table %s: %w", table, err)
	}
	return r, nil
}

// tree returns a table that can be guarded, its partitions and its children by
// inheritance, parents first.
func tree(ctx context.Context, tx pgx.Tx, table string) ([]relation, error) {
	r, err := find(ctx, tx, table)
	switch {
	case err != nil:
		return nil, err
	case r.oid == 0:
		return nil, missing(table)
	case r.kind != "r" && r.kind != "p":
		return nil, fmt.Errorf("%s is no table: only tables can be guarded", r.name)
	}
	rows, err := tx.Query(ctx, `WITH RECURSIVE tree AS (SELECT $1::oid AS oid, 0 AS depth UNION SELECT i.inhrelid, t.depth + 1 FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
		SELECT t.oid, t.oid::regclass::text, c.relkind::text, c.relispartition AND max(t.depth) > 0 FROM tree t JOIN pg_class c ON c.oid = t.oid
		GROUP BY t.oid, c.relkind, c.relispartition ORDER BY max(t.depth), 2`, r.oid)
	if err != nil {
		return nil, fmt.Errorf("list the partitions and children of table %s: %w", r.name, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r relation, err error) {
		return r, row.Scan(&r.oid, &r.name, &r.kind, &r.clone)
	})
	if err != nil {
		return nil, fmt.Errorf("list the partitions and children of table %s: %w", r.name, err)
	}
	return all, nil
}

func missing(table string) error {
	return fmt.Errorf("there is no table %s in this database: name it with its schema, as in public.invoices", table)
}

func names(all []relation) []string {
	var list []string
	for _, r := range all {
		list = append(list, r.name)
	}
	return list
}

func oids(all []relation) []uint32 {
	var list []uint32
	for _, r := range all {
		list = append(list, r.oid)
	}
	return list
}

// mark makes the functions of a guard, and marks its resource. It reports false, with the
// guard, if the table is guarded already as o says.
func mark(ctx context.Context, tx pgx.Tx, o Options) (g Guard, needed bool, err error) {
	all, err := tree(ctx, tx, o.Table)
	if err != nil {
		return g, false, err
	}
	o.Table = all[0].name
	if err := suits(ctx, tx, o, all); err != nil {
		return g, false, err
	}
	if err := becomeControl(ctx, tx); err != nil {
		return g, false, err
	}
	list, err := free(ctx, tx, o, all)
	if err != nil {
		return g, false, err
	}
	at := slices.IndexFunc(list, func(g Guard) bool { return g.Table == o.Table })
	if at >= 0 && list[at].same(o) {
		return list[at], false, nil
	}
	fence, err := record(ctx, tx, o.Resource, all[0].oid, "")
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

// free returns the guards that the tables have. It is an error if one is of another
// resource, or if the first table is guarded as a part of another.
func free(ctx context.Context, tx pgx.Tx, o Options, all []relation) ([]Guard, error) {
	list, err := Read(ctx, tx, names(all)...)
	if err != nil {
		return nil, err
	}
	for _, g := range list {
		switch {
		case g.Resource != o.Resource:
			return nil, fmt.Errorf("table %s is guarded by resource %q: remove that guard first", g.Table, g.Resource)
		case g.Table != o.Table && g.includes(o.Table):
			return nil, fmt.Errorf("table %s is guarded as a part of %s: change the guard of that", o.Table, g.Table)
		}
	}
	return list, nil
}

func (g Guard) includes(table string) bool {
	return slices.ContainsFunc(g.Relations, func(r Relation) bool { return r.Name == table })
}

// build makes the triggers, and the column of the stamp. It waits for the locks of all
// tables together no longer than lockTimeout.
func build(ctx context.Context, tx pgx.Tx, o Options) (Guard, error) {
	until := time.Now().Add(lockTimeout)
	all, err := tree(ctx, tx, o.Table)
	if err != nil {
		return Guard{}, err
	}
	o.Table = all[0].name
	p, err := newPlan(ctx, tx, o, all)
	if err != nil {
		return Guard{}, err
	}
	if err := lock(ctx, tx, p.locks, p.mode, until); err != nil {
		return Guard{}, err
	}
	if all, err = tree(ctx, tx, o.Table); err != nil { // as they are now
		return Guard{}, err
	}
	if err := suits(ctx, tx, o, all); err != nil {
		return Guard{}, err
	}
	if p, err = newPlan(ctx, tx, o, all); err != nil {
		return Guard{}, err
	}
	for _, sql := range p.statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return Guard{}, fmt.Errorf("guard table %s (%s): %w", o.Table, sql, err)
		}
	}
	if _, err := record(ctx, tx, o.Resource, 0, ""); err != nil {
		return Guard{}, err
	}
	list, err := free(ctx, tx, o, all)
	if err != nil {
		return Guard{}, err
	}
	if len(list) != 1 || !list[0].same(o) {
		return Guard{}, fmt.Errorf("table %s is not guarded as it should be, but as %+v: nothing changed; please report this", o.Table, list)
	}
	return list[0], nil
}
