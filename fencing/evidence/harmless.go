package evidence

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// HarmfulError means that reading the stamps of a table could run what another role has made, with the rights of the
// reader: Postgres evaluates what an index or extended statistics say about a table, and the keys of partitions,
// already when it plans a query; and a column of another type than bigint may be cast by a function.
type HarmfulError struct {
	Table string
	Calls []string // what calls functions of another role that is no superuser
}

// HarmfulRemedy says what to do about a HarmfulError.
const HarmfulRemedy = "let a superuser own what you trust, with all functions that it calls"

func (e *HarmfulError) Error() string {
	return fmt.Sprintf("table %s was not read, because that could run functions of another role with the rights of the reader (%s): %s", e.Table, HarmfulRemedy, strings.Join(e.Calls, ", "))
}

// callsSQL lists what belongs to the tables $1, can be evaluated by a query that reads them, and calls a function of a
// role that is neither a superuser nor the reader. Constraints are not among it, because LockHarmless has the planner
// ignore them.
//
// An operator of such a role counts, whatever function it has, and so does one with a negator or a commutator of such a
// role, because the planner may call their functions. So does a range type, whatever it is within, because the planner
// calls functions of it when it estimates a condition: of a column next to an index with a condition or an expression,
// or next to extended statistics, and within such an expression. Postgres does not record all types of an expression as
// dependencies, so they are taken from the tree.
//
// A domain of such a role, or with a check that calls or names something of one, counts if an expression does more than
// read a column of it: for a cast, the planner looks at the domain's checks, and evaluates what is constant in them. A
// polymorphic function of an extension may look at them too, as populate_record of hstore does.
// satisfies_hash_partition evaluates the key of any table, so it always counts.
const callsSQL = `WITH RECURSIVE
	odd_index AS (SELECT i.indexrelid AS oid, i.indrelid FROM pg_index i WHERE i.indrelid = ANY ($1) AND (i.indpred IS NOT NULL OR i.indexprs IS NOT NULL)),
	statistics AS (SELECT e.oid, e.stxrelid FROM pg_statistic_ext e WHERE e.stxrelid = ANY ($1)),
	odd AS (SELECT indrelid AS oid FROM odd_index UNION SELECT oid FROM odd_index UNION SELECT stxrelid FROM statistics),
	trees AS (SELECT pg_describe_object('pg_class'::regclass, i.indexrelid, 0) AS what, concat(i.indpred, i.indexprs) AS tree FROM pg_index i WHERE i.indrelid = ANY ($1)
		UNION ALL SELECT pg_describe_object('pg_statistic_ext'::regclass, e.oid, 0), e.stxexprs::text FROM pg_statistic_ext e WHERE e.stxrelid = ANY ($1)
		UNION ALL SELECT pg_describe_object('pg_class'::regclass, k.partrelid, 0), k.partexprs::text FROM pg_partitioned_table k WHERE k.partrelid = ANY ($1)),
	functions AS (SELECT t.what, p.oid, p.proname, p.oid >= 16384 AND p.proargtypes::oid[] && ARRAY(SELECT y.oid FROM pg_type y WHERE y.typtype = 'p') AS polymorphic FROM trees t
		CROSS JOIN LATERAL regexp_matches(t.tree, ':(?:op)?funcid ([0-9]+)', 'g') m JOIN pg_proc p ON p.oid = m[1]::oid),
	checks AS MATERIALIZED (SELECT k.oid, k.contypid, k.conbin::text AS tree FROM pg_constraint k WHERE k.contypid <> 0),
	named AS MATERIALIZED (SELECT k.contypid, m[1]::oid AS oid FROM checks k CROSS JOIN LATERAL regexp_matches(k.tree, ':[a-z_]*typ(?:e|id|eid) ([0-9]+)', 'gi') m),
	types AS (SELECT 'column ' || quote_ident(a.attname) || ' of ' || a.attrelid::regclass AS what, a.atttypid AS oid, '{r,m}'::"char"[] AS kinds
			FROM pg_attribute a JOIN odd ON odd.oid = a.attrelid WHERE a.attnum > 0 AND NOT a.attisdropped
		UNION SELECT t.what, m[2]::oid, CASE WHEN m[1] <> 'vartype' OR EXISTS (SELECT FROM functions f WHERE f.what = t.what AND f.polymorphic) THEN '{r,m,d}'::"char"[] ELSE '{r,m}' END
			FROM trees t CROSS JOIN LATERAL regexp_matches(t.tree, ':([a-z_]*typ(?:e|id|eid)) ([0-9]+)', 'gi') m
		UNION SELECT y.what, part.oid, y.kinds FROM types y JOIN pg_type t ON t.oid = y.oid CROSS JOIN LATERAL (
			SELECT unnest(ARRAY[t.typbasetype, t.typelem]) UNION SELECT b.atttypid FROM pg_attribute b WHERE b.attrelid = t.typrelid AND NOT b.attisdropped
			UNION SELECT n.oid FROM named n WHERE n.contypid = t.oid
			UNION SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
		) part (oid) WHERE part.oid <> 0),
	operators AS (SELECT o.oid, o.oid AS other FROM pg_operator o
		UNION SELECT n.oid, v.oid FROM operators n JOIN pg_operator o ON o.oid = n.other CROSS JOIN LATERAL unnest(ARRAY[o.oprnegate, o.oprcom]) v (oid) WHERE v.oid <> 0),
	foreign_calls AS (SELECT d.classid, d.objid FROM pg_depend d
		LEFT JOIN operators n ON d.refclassid = 'pg_operator'::regclass AND n.oid = d.refobjid LEFT JOIN pg_operator o ON o.oid = n.other
		JOIN pg_proc p ON p.oid = CASE WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode END
		JOIN pg_roles r ON r.oid IN (p.proowner, o.oprowner)
		WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass) AND NOT r.rolsuper AND r.rolname <> session_user)
	SELECT pg_describe_object(c.classid, c.objid, 0) AS what FROM foreign_calls c
	WHERE c.classid = 'pg_class'::regclass AND (c.objid = ANY ($1) OR c.objid IN (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = ANY ($1)))
		OR c.classid = 'pg_statistic_ext'::regclass AND c.objid IN (SELECT oid FROM statistics)
	UNION SELECT f.what || ', by the function ' || f.proname FROM functions f WHERE f.proname = 'satisfies_hash_partition'
	UNION SELECT y.what || ', by the type ' || format_type(t.oid, NULL)
	FROM types y JOIN pg_type t ON t.oid = y.oid LEFT JOIN pg_range g ON t.oid IN (g.rngtypid, g.rngmultitypid) LEFT JOIN pg_proc p ON p.oid = g.rngsubdiff::oid
	JOIN pg_roles r ON r.oid IN (t.typowner, p.proowner)
	WHERE t.typtype = ANY (y.kinds) AND (NOT r.rolsuper AND r.rolname <> session_user
		OR t.oid IN (SELECT k.contypid FROM checks k LEFT JOIN foreign_calls c ON c.classid = 'pg_constraint'::regclass AND c.objid = k.oid
			WHERE c.objid IS NOT NULL OR k.tree ~ (':funcid ' || 'satisfies_hash_partition'::regproc::oid || ' '))) ORDER BY what`

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func calls(ctx context.Context, q querier, tables []uint32) ([]string, error) {
	rows, err := q.Query(ctx, callsSQL, tables)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// LockHarmless locks a table, with its partitions and children unless only is set, so that the transaction can read the
// column of its stamps, and no one can drop or rename it or alter the column. It fails with a *HarmfulError if that
// would evaluate the code of another role. The lock does not keep the owner from making an index, statistics or a child
// between this look and the read: one that does would keep VACUUM out, and needs more than the right to read. table is
// qualified and quoted, stamp is neither. The search_path of tx must begin with pg_catalog.
func LockHarmless(ctx context.Context, tx pgx.Tx, table, stamp string, only bool) error {
	what := table
	if only {
		what = "ONLY " + table
	}
	// A policy that would hide rows, and call functions for that, makes the query fail. The planner overestimates
	// callsSQL, which reads few rows and would spend most of its time on being compiled.
	for _, sql := range []string{"SET LOCAL jit = off", "SET LOCAL constraint_exclusion = off", "SET LOCAL row_security = off", "LOCK TABLE " + what + " IN ACCESS SHARE MODE"} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	rows, err := tx.Query(ctx, `WITH RECURSIVE tree AS (SELECT $1::regclass::oid AS oid
		UNION SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid WHERE NOT $2)
		SELECT oid FROM tree UNION SELECT relid FROM pg_partition_ancestors($1::regclass)`, table, only)
	if err != nil {
		return err
	}
	oids, err := pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		return err
	}
	var odd string
	if err := tx.QueryRow(ctx, oddSQL, oids, stamp).Scan(&odd); err != nil {
		return err
	}
	if odd != "" {
		return &HarmfulError{Table: table, Calls: []string{odd}}
	}
	all, err := calls(ctx, tx, oids)
	if err == nil && len(all) > 0 {
		err = &HarmfulError{Table: table, Calls: all}
	}
	return err
}

// oddSQL says which of the tables $1 is none, or has no column $2 that can be read as it is.
const oddSQL = `SELECT coalesce(min(c.oid::regclass::text || CASE WHEN c.relkind NOT IN ('r', 'p') THEN ' is no ordinary table'
		ELSE ' has no plain column ' || quote_ident($2) || ' of type bigint, and a cast may be a function' END), '')
	FROM pg_class c WHERE c.oid = ANY ($1) AND (c.relkind NOT IN ('r', 'p') OR NOT EXISTS (SELECT FROM pg_attribute a
		WHERE a.attrelid = c.oid AND a.attname = $2 AND a.atttypid = 'int8'::regtype AND a.attgenerated = '' AND NOT a.attisdropped))`
