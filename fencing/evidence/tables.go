package evidence

import (
	"context"
	"fmt"
	"strings"

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
	// Bare: nothing stamps its rows any more, but its column has the name of a stamp. It was a
	// partition and is detached, or its trigger for rows was dropped.
	Bare bool
	// Alike: it is bare and has no guard at all, but the columns of a partitioned table that is
	// stamped. It may never have been a part of it.
	Alike bool
	// Partitioned: it has no rows of its own.
	Partitioned bool
	// InForce: the trigger that stamps its rows exists, and always fires.
	InForce bool
	// LaterTriggers are triggers that fire after that one, and could change the stamp.
	LaterTriggers []string
	// Unreadable says why its rows cannot be read, "" if they can.
	Unreadable string
	Facts
}

// Facts are what a table's catalog says about the ids of its rows' transactions.
type Facts struct {
	Blocks int64
	// GuardMade is the transaction that made the trigger. Rows that are not younger were
	// not stamped by it. Of a bare table, it is that of the trigger for TRUNCATE.
	GuardMade Xid
	// Bared is a transaction after which nothing stamped the rows of a bare table, 0 of others.
	// A partition lost its trigger in that one.
	Bared Xid
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

// listed is SQL for the tables of interest: those in the tree of a stamped one; the guarded ones
// that are bare, because Postgres drops the trigger for rows from a partition that is detached, but
// not the one for TRUNCATE; those without a guard that look like such a partition; and the lost ones.
const listed = `WITH stamps AS (
	SELECT m[1]::integer AS fence, m[2] AS stamp FROM pg_proc p, regexp_match(p.proname, '^guard_([0-9]+)_(.+)$') m
	WHERE p.pronamespace = 'fencepost'::regnamespace AND m IS NOT NULL
), bare AS (
	SELECT s.fence, s.stamp, c.oid, ARRAY(SELECT format('%s %s', b.attname, b.atttypid) FROM pg_attribute b
		WHERE b.attrelid = c.oid AND b.attnum > 0 AND NOT b.attisdropped ORDER BY b.attname) AS columns
	FROM stamps s JOIN pg_attribute a ON a.attname = s.stamp AND a.attnum > 0 AND a.atttypid = 'int8'::regtype AND NOT a.attisdropped
	JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r' AND c.relpersistence <> 't'
	WHERE NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE t.tgrelid = c.oid AND t.tgtype & 1 = 1 AND p.pronamespace = 'fencepost'::regnamespace)
), partitioned AS (
	SELECT g.resource, g.fence, g.stamp, ARRAY(SELECT format('%s %s', b.attname, b.atttypid) FROM pg_attribute b
		WHERE b.attrelid = g.relation AND b.attnum > 0 AND NOT b.attisdropped ORDER BY b.attname) AS columns
	FROM fencepost.guards g JOIN pg_class c ON c.oid = g.relation AND c.relkind = 'p' WHERE g.relation = g.root AND g.stamp IS NOT NULL
), guarded AS (
	SELECT g.resource, g.fence, g.root, g.relation, coalesce(g.stamp, r.stamp) AS stamp, g.writes, g.behind
	FROM fencepost.guards g JOIN fencepost.guards r ON r.fence = g.fence AND r.relation = g.root AND r.root = g.root
)
SELECT g.resource, g.root::text, g.relation::text, g.relation::oid, g.stamp, g.writes, g.behind, false, false, false
	FROM guarded g WHERE g.stamp IS NOT NULL
UNION ALL SELECT g.resource, g.root::text, g.relation::text, b.oid, b.stamp, false, '{}', false, true, false
	FROM guarded g JOIN bare b ON b.fence = g.fence AND b.oid = g.relation WHERE g.stamp IS NULL
UNION SELECT p.resource, b.oid::regclass::text, b.oid::regclass::text, b.oid, b.stamp, false, '{}', false, true, true
	FROM partitioned p JOIN bare b ON b.fence = p.fence AND b.stamp = p.stamp AND b.columns = p.columns
	WHERE NOT EXISTS (SELECT FROM fencepost.guards g WHERE g.relation = b.oid)
UNION ALL SELECT l.resource, l.name, l.name, 0::oid, '', false, '{}', true, false, false FROM fencepost.lost_guards() l
ORDER BY 1, 2, 3`

// Tables returns the stamped tables with their partitions and children, those that were stamped once
// as far as their columns show, and those that are recorded as guarded and have lost their guard.
func (s *Session) Tables(ctx context.Context) ([]Table, error) {
	var list []Table
	err := s.asControl(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, listed)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (t Table, err error) {
			return t, row.Scan(&t.Resource, &t.Root, &t.Name, &t.oid, &t.Stamp, &t.InForce, &t.LaterTriggers, &t.Lost, &t.Bare, &t.Alike)
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
		var all []string
		if all, err = calls(ctx, s.conn, []uint32{t.oid}); err != nil {
			return err
		}
		if len(all) > 0 {
			t.Unreadable = "reading it could run functions of another role with the rights of the reader (" + HarmfulRemedy + "): " + strings.Join(all, ", ")
			return nil
		}
		t.Facts, err = s.Facts(ctx, *t)
	}
	return err
}

// factsOf is SQL for the facts of a table. made is the transaction of the trigger that exists:
// the one for rows, if there is one. When a partition is detached, its columns are changed.
const factsOf = `SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_relation_filenode(c.oid) <> c.oid, %[1]s, n.next,
	coalesce(made.guard, 0), CASE WHEN NOT $2 THEN 0 WHEN made.guard IS NULL THEN 1 ELSE (SELECT %[2]s FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = $3) END
	FROM pg_class c CROSS JOIN %[4]s CROSS JOIN LATERAL (
		SELECT coalesce(min(%[3]s) FILTER (WHERE g.tgtype & 1 = 1), min(%[3]s)) AS guard
		FROM pg_depend d JOIN pg_trigger g ON g.oid = d.objid JOIN pg_proc p ON p.oid = g.tgfoid
		WHERE d.classid = 'pg_trigger'::regclass AND g.tgrelid = c.oid AND p.pronamespace = 'fencepost'::regnamespace
	) made WHERE c.oid = $1`

// Facts reads what the catalog says about a table now.
func (s *Session) Facts(ctx context.Context, t Table) (f Facts, err error) {
	sql := fmt.Sprintf(factsOf, fmt.Sprintf(full, "c"), fmt.Sprintf(full, "a"), fmt.Sprintf(full, "d"), next)
	err = s.conn.QueryRow(ctx, sql, t.oid, t.Bare, t.Stamp).Scan(&f.Blocks, &f.Rewritten, &f.Altered, &f.Next, &f.GuardMade, &f.Bared)
	if err != nil {
		return Facts{}, fmt.Errorf("look at table %s: %w", t.Name, err)
	}
	return f, nil
}
