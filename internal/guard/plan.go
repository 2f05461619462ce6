package guard

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// The names of the triggers. Postgres fires triggers in the order of their names, and no
// later one may change the stamp.
const (
	rowTrigger      = "~fencepost"
	truncateTrigger = "~fencepost_truncate"
)

// The locks that statements take: no one reads under an exclusive one.
const (
	toWrite   = "SHARE ROW EXCLUSIVE"
	exclusive = "ACCESS EXCLUSIVE"
)

// present is an existing trigger of a guard.
type present struct {
	relation  uint32
	name      string
	function  string
	truncates bool
	always    bool   // fires also with session_replication_role = replica
	clone     bool   // made by Postgres, from the trigger of a partitioned table
	arguments string // in hex, each with a zero byte after it
}

// expected is the name that the trigger should have.
func (p present) expected() string {
	if p.truncates {
		return truncateTrigger
	}
	return rowTrigger
}

// presents reads the triggers of guards that tables have.
func presents(ctx context.Context, tx pgx.Tx, tables []uint32) ([]present, error) {
	rows, err := tx.Query(ctx, `SELECT t.tgrelid, t.tgname::text, p.proname::text, t.tgtype & 32 > 0, t.tgenabled = 'A', t.tgparentid <> 0, encode(t.tgargs, 'hex')
		FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = 'fencepost' AND p.proname ~ '^guard_[0-9]+(_|$)' AND t.tgrelid = ANY($1) ORDER BY 1, 2`, tables)
	if err != nil {
		return nil, fmt.Errorf("read the triggers: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p present, err error) {
		return p, row.Scan(&p.relation, &p.name, &p.function, &p.truncates, &p.always, &p.clone, &p.arguments)
	})
	if err != nil {
		return nil, fmt.Errorf("read the triggers: %w", err)
	}
	return list, nil
}

// drops returns the statements that drop triggers, whatever their names. Copies fall with
// their originals.
func drops(all []relation, list []present) (statements []string) {
	for _, r := range all {
		for _, p := range list {
			if p.relation == r.oid && !p.clone {
				statements = append(statements, fmt.Sprintf("DROP TRIGGER %s ON %s", quote(p.name), r.name))
			}
		}
	}
	return statements
}

// plan is what has to be done to guard a table, and nothing that is so already.
type plan struct {
	statements []string
	locks      []string // the tables that the statements lock, parents first
	mode       string   // of those locks
}

// wanted are the triggers that a guard should have.
type wanted struct {
	plain, stamping string   // functions
	arguments       []string // of both
}

// newPlan compares what exists with what should. Afterwards the transaction is run by
// the role that has logged in.
func newPlan(ctx context.Context, tx pgx.Tx, o Options, all []relation) (plan, error) {
	w := wanted{arguments: o.arguments()}
	if err := becomeControl(ctx, tx); err != nil {
		return plan{}, err
	}
	err := tx.QueryRow(ctx, "SELECT fencepost.make_guard(f.id, NULL), fencepost.make_guard(f.id, nullif($2, '')) FROM fencepost.fence f WHERE f.resource = $1", o.Resource, o.Stamp).
		Scan(&w.plain, &w.stamping)
	if err != nil {
		return plan{}, fmt.Errorf("look for the functions of the guard: %w", err)
	}
	if err := becomeSelf(ctx, tx); err != nil {
		return plan{}, err
	}
	there := true // the column
	if o.Stamp != "" {
		err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = $1 AND a.attname = $2 AND a.attnum > 0)", all[0].oid, o.Stamp).Scan(&there)
		if err != nil {
			return plan{}, fmt.Errorf("look for column %q of table %s: %w", o.Stamp, o.Table, err)
		}
	}
	list, err := presents(ctx, tx, oids(all))
	if err != nil {
		return plan{}, err
	}
	p := w.compare(all, list)
	if !there {
		p.mode, p.locks = exclusive, names(all)
		p.statements = append([]string{fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s bigint", o.Table, quote(o.Stamp))}, p.statements...)
	}
	return p, nil
}

// compare returns a plan without a column. If a trigger has another name than it should, or
// is where a copy should be, all are recreated.
func (w wanted) compare(all []relation, list []present) plan {
	p := plan{mode: toWrite}
	for _, r := range all {
		odd := func(t present) bool {
			return t.relation == r.oid && (t.name != t.expected() || r.clone && !t.truncates && !t.clone)
		}
		if slices.ContainsFunc(list, odd) {
			p = plan{mode: exclusive, statements: drops(all, list), locks: names(all)}
			list = nil
			break
		}
	}
	below := false // a partitioned table above gets a row trigger, of which partitions get copies
	for _, r := range all {
		before := len(p.statements)
		p.statements = append(p.statements, w.statements(r, list, truncateTrigger)...)
		row := w.statements(r, list, rowTrigger)
		p.statements = append(p.statements, row...)
		below = below || len(row) > 0 && r.kind == "p"
		if (len(p.statements) > before || below && r.clone) && p.mode != exclusive {
			p.locks = append(p.locks, r.name)
		}
	}
	return p
}

// statements returns those that one trigger of a table needs. Postgres makes copies of row
// triggers by itself, but someone may have disabled one.
func (w wanted) statements(r relation, list []present, name string) []string {
	enable := fmt.Sprintf("ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", r.name, quote(name))
	at := slices.IndexFunc(list, func(t present) bool { return t.relation == r.oid && t.name == name })
	events, level, function := "INSERT OR UPDATE OR DELETE", "ROW", w.stamping
	if name == truncateTrigger {
		events, level, function = "TRUNCATE", "STATEMENT", w.plain
	}
	copied := r.clone && name == rowTrigger
	fits := at >= 0 && list[at].function == function && list[at].arguments == hexed(w.arguments)
	switch {
	case fits && list[at].always || copied && at < 0:
		return nil
	case copied || fits:
		return []string{enable}
	}
	quoted := make([]string, len(w.arguments))
	for i, a := range w.arguments {
		quoted[i] = literal(a)
	}
	return []string{fmt.Sprintf("CREATE OR REPLACE TRIGGER %s BEFORE %s ON %s FOR EACH %s EXECUTE FUNCTION fencepost.%s(%s)",
		quote(name), events, r.name, level, quote(function), strings.Join(quoted, ", ")), enable}
}

// hexed writes the arguments of a trigger as presents reads them.
func hexed(arguments []string) string {
	return hex.EncodeToString([]byte(strings.Join(arguments, "\x00") + "\x00"))
}

// lock locks tables, one after the other. It waits no longer than until some time for all of
// them together, because everyone else waits behind the locks that it has already.
func lock(ctx context.Context, tx pgx.Tx, tables []string, mode string, until time.Time) error {
	for _, table := range tables {
		left := max(time.Until(until), time.Millisecond)
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d; LOCK TABLE ONLY %s IN %s MODE", left.Milliseconds(), table, mode)); err != nil {
			return fmt.Errorf("lock table %s: %w", table, err)
		}
	}
	return nil
}

// literal quotes a role's name as an SQL constant.
func literal(s string) string {
	s = "'" + strings.ReplaceAll(s, "'", "''") + "'"
	if strings.Contains(s, `\`) {
		return " E" + strings.ReplaceAll(s, `\`, `\\`)
	}
	return s
}
