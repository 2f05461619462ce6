package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// suits returns an error that says why tables cannot be guarded as o says.
func suits(ctx context.Context, tx pgx.Tx, o Options, all []relation) error {
	for _, r := range all {
		if r.kind == "f" {
			return fmt.Errorf("%s is a foreign table, which others write unseen: guard the table that it refers to", r.name)
		}
	}
	var own bool
	err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY($1) AND n.nspname = 'fencepost')", oids(all)).Scan(&own)
	switch {
	case err != nil:
		return fmt.Errorf("look for the schema of table %s: %w", o.Table, err)
	case own:
		return fmt.Errorf("%s is a table of Fencepost itself, which writes it without a claim: it cannot be guarded", o.Table)
	}
	var unknown []string
	if err := tx.QueryRow(ctx, "SELECT coalesce(array_agg(n ORDER BY n), '{}') FROM unnest($1::text[]) n WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = n)", o.Except).Scan(&unknown); err != nil {
		return fmt.Errorf("look for the roles %v: %w", o.Except, err)
	}
	if len(unknown) > 0 {
		return fmt.Errorf("there is no role %q: name by --except the roles that sessions log in as", strings.Join(unknown, ", "))
	}
	if o.Stamp == "" {
		return nil
	}
	if err := stampSuits(ctx, tx, o, all); err != nil {
		return err
	}
	return unchanged(ctx, tx, all)
}

// stampSQL says of a column, in each table that has it, why it cannot take a stamp. A column
// of a partition's key, and its table, depend on each other.
const stampSQL = `SELECT c.oid::regclass::text, CASE
		WHEN a.atttypid <> 'int8'::regtype OR a.attgenerated <> '' OR a.attidentity <> '' THEN 'it must be a plain bigint'
		WHEN EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
			AND a.attnum IN (d.objsubid, d.refobjsubid) AND d.deptype = 'i') THEN 'it is part of the partition key'
		WHEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion) AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])) THEN 'it is part of a primary key, or of another that is unique'
		WHEN EXISTS (SELECT FROM pg_constraint k WHERE k.contype = 'f' AND k.conrelid = c.oid AND a.attnum = ANY(k.conkey)) THEN 'it is part of a foreign key'
		WHEN a.attnotnull AND $3 THEN 'it is NOT NULL, and the rows of whom the guard lets pass have no stamp'
		ELSE '' END
	FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.oid = ANY($1) AND a.attname = $2 AND a.attnum > 0`

// stampSuits returns an error if the column of the stamp exists, and cannot take it.
func stampSuits(ctx context.Context, tx pgx.Tx, o Options, all []relation) error {
	rows, err := tx.Query(ctx, stampSQL, oids(all), o.Stamp, o.Warn || len(o.Except) > 0)
	if err != nil {
		return fmt.Errorf("look at column %q: %w", o.Stamp, err)
	}
	var table, why, said string
	if _, err := pgx.ForEachRow(rows, []any{&table, &why}, func() error {
		if why != "" {
			said = fmt.Sprintf("column %q of table %s cannot be a stamp: %s. Name another column, which guard add makes", o.Stamp, table, why)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("look at column %q: %w", o.Stamp, err)
	}
	if said != "" {
		return errors.New(said)
	}
	return nil
}

// unchanged returns an error if a trigger would fire after the one that stamps the rows.
func unchanged(ctx context.Context, tx pgx.Tx, all []relation) error {
	var later []string
	err := tx.QueryRow(ctx, `SELECT coalesce(array_agg(format('%I on %s', t.tgname, t.tgrelid::regclass) ORDER BY t.tgname, t.tgrelid), '{}')
		FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE t.tgrelid = ANY($1) AND t.tgname > $2::name AND t.tgtype & 3 = 3 AND t.tgtype & 20 > 0 AND t.tgenabled <> 'D'
			AND NOT (n.nspname = 'fencepost' AND p.proname ~ '^guard_[0-9]+(_|$)')`, oids(all), rowTrigger).Scan(&later)
	if err != nil {
		return fmt.Errorf("look for other triggers: %w", err)
	}
	if len(later) > 0 {
		return fmt.Errorf("a trigger fires after the guard, and could change the stamp: %s. Rename it (ALTER TRIGGER ... RENAME TO), so that its name sorts before %s", strings.Join(later, ", "), rowTrigger)
	}
	return nil
}
