package evidence

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Table is a table, partition or child that is guarded with a stamp, or that is recorded as
// guarded.
type Table struct {
	Resource string
	Root     string // the table whose part it is, or its own name
	Name     string // qualified by its schema
	Stamp    string // the column
	oid      uint32

	// Lost: it is recorded as guarded, and has no guard. Nothing else is known then.
	Lost bool
	// Partitioned: it has no rows of its own.
	Partitioned bool
	// InForce: the trigger that stamps its rows is there, and fires always.
	InForce bool
	// Behind are triggers that fire behind that one, and could change the stamp.
	Behind []string
	// Unreadable says why its rows cannot be read, "" if they can.
	Unreadable string
	Facts
}

// Facts are what a table's catalog says about the ids of its rows' transactions.
type Facts struct {
	Blocks int64
	// GuardMade is the transaction that made the trigger. Rows that are not younger were
	// not stamped by it.
	GuardMade Xid
	// Rewritten: the table's file was replaced at some time (ALTER TABLE, TRUNCATE, VACUUM
	// FULL and others). The rows in a new file may have a new transaction.
	Rewritten bool
	// Altered is the transaction that changed the table's entry in the catalog last. If the
	// file was replaced, then by that transaction or an older one.
	Altered Xid
	// Next is an id above that of every transaction that had committed.
	Next Xid
}

// full is SQL that extends a row's xmin to 64 bits; see the package comment.
const full = `CASE WHEN %[1]s.xmin::text::bigint < 3 THEN 0
	WHEN %[1]s.xmin::text::bigint <= n.next & 4294967295 THEN (n.next >> 32 << 32) + %[1]s.xmin::text::bigint
	ELSE (n.next >> 32 << 32) - 4294967296 + %[1]s.xmin::text::bigint END`

// next is SQL for an id above that of each transaction whose rows the statement can see.
const next = `(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next) n`

// Tables returns the stamped tables with their partitions and children, and those that are
// recorded as guarded and have lost their guard.
func (s *Session) Tables(ctx context.Context) ([]Table, error) {
	var list []Table
	err := s.asControl(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT g.resource, g.root::text, g.relation::text, g.relation::oid, coalesce(g.stamp, r.stamp), g.writes, g.behind, false
			FROM fencepost.guards g JOIN fencepost.guards r ON r.fence = g.fence AND r.relation = g.root AND r.root = g.root
			WHERE coalesce(g.stamp, r.stamp) IS NOT NULL
			UNION ALL SELECT l.resource, l.name, l.name, 0::oid, '', false, '{}', true FROM fencepost.lost_guards() l
			ORDER BY 1, 2, 3`)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
			return t, row.Scan(&t.Resource, &t.Root, &t.Name, &t.oid, &t.Stamp, &t.InForce, &t.Behind, &t.Lost)
		})
		return err
	})
	for i := range list {
		if err == nil && !list[i].Lost {
			err = s.look(ctx, &list[i])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the stamped tables: %w", err)
	}
	return list, nil
}

// look fills in what the catalog says about a table.
func (s *Session) look(ctx context.Context, t *Table) error {
	var kind, method string
	var column, may, hidden bool
	rows, err := s.conn.Query(ctx, `SELECT c.relkind::text, coalesce(a.amname, ''),
		EXISTS (SELECT FROM pg_attribute b WHERE b.attrelid = c.oid AND b.attname = $2 AND b.atttypid = 'int8'::regtype AND NOT b.attisdropped),
		has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
		FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam WHERE c.oid = $1`, t.oid, t.Stamp)
	if err != nil {
		return err
	}
	t.Unreadable = "it was dropped"
	if _, err = pgx.ForEachRow(rows, []any{&kind, &method, &column, &may, &hidden}, func() error { t.Unreadable = ""; return nil }); err != nil || t.Unreadable != "" {
		return err
	}
	switch {
	case kind == "p":
		t.Partitioned = true
	case kind != "r":
		t.Unreadable = "it is no ordinary table"
	case method != "heap":
		t.Unreadable = fmt.Sprintf("its access method is %s: only rows of heap tables tell their transaction", method)
	case !column:
		t.Unreadable = fmt.Sprintf("it has no column %s of type bigint", t.Stamp)
	case !may:
		t.Unreadable = "the role may not read it: connect as a superuser, or GRANT SELECT on it"
	case hidden:
		t.Unreadable = "row-level security hides rows from the role: connect as a superuser"
	default:
		t.Facts, err = s.Facts(ctx, *t)
	}
	return err
}

// Facts reads what the catalog says about a table now.
func (s *Session) Facts(ctx context.Context, t Table) (f Facts, err error) {
	err = s.conn.QueryRow(ctx, fmt.Sprintf(`SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_relation_filenode(c.oid) <> c.oid, %s, n.next,
		coalesce((SELECT min(%s) FROM pg_depend d JOIN pg_trigger g ON g.oid = d.objid JOIN pg_proc p ON p.oid = g.tgfoid
			WHERE d.classid = 'pg_trigger'::regclass AND g.tgrelid = c.oid AND g.tgtype & 1 = 1 AND p.pronamespace = 'fencepost'::regnamespace), 0)
		FROM pg_class c CROSS JOIN %s WHERE c.oid = $1`, fmt.Sprintf(full, "c"), fmt.Sprintf(full, "d"), next), t.oid).
		Scan(&f.Blocks, &f.Rewritten, &f.Altered, &f.Next, &f.GuardMade)
	if err != nil {
		return Facts{}, fmt.Errorf("look at table %s: %w", t.Name, err)
	}
	return f, nil
}
