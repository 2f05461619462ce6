package guard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options say how a table is guarded.
type Options struct {
	Resource string
	Table    string // qualified by its schema
	// Stamp is the column that takes the epoch of each write; "" for none. A missing one
	// is added.
	Stamp string
	// Except are the login roles that are let pass. They are matched by the name under
	// which a session has logged in.
	Except []string
	// Warn lets every write pass, and has the server's log name those that would be
	// refused.
	Warn bool
}

// arguments are those of the triggers.
func (o Options) arguments() []string {
	mode := "refuse"
	if o.Warn {
		mode = "warn"
	}
	return append([]string{mode}, o.Except...)
}

// Guard is a guarded table.
type Guard struct {
	Options
	// Relations are the table, its partitions and its children by inheritance. There are
	// none if the table is only recorded as guarded: see the method Lost.
	Relations []Relation
}

// Lost reports whether the table is recorded as guarded, and has no guard: it was dropped
// or recreated, or its triggers were, or guard add has not come to an end.
func (g Guard) Lost() bool { return len(g.Relations) == 0 }

// Relation is a table with the triggers of a guard.
type Relation struct {
	Name string
	// Writes and Truncates say whether the trigger for rows, and the one for TRUNCATE, is
	// in force.
	Writes, Truncates bool
	// LaterTriggers are triggers that fire after the one that stamps the rows, and could change
	// the stamp.
	LaterTriggers []string
}

// Broken returns the relations of which a trigger is missing or disabled.
func (g Guard) Broken() []string {
	if g.Lost() {
		return []string{g.Table}
	}
	var broken []string
	for _, r := range g.Relations {
		if !r.Writes || !r.Truncates {
			broken = append(broken, r.Name)
		}
	}
	return broken
}

// LaterTriggers returns the triggers that could change the stamps, with their tables.
func (g Guard) LaterTriggers() []string {
	var behind []string
	for _, r := range g.Relations {
		for _, name := range r.LaterTriggers {
			behind = append(behind, name+" on "+r.Name)
		}
	}
	return behind
}

// same reports whether the table is guarded as o says, with every trigger in force.
func (g Guard) same(o Options) bool {
	return g.Resource == o.Resource && g.Stamp == o.Stamp && slices.Equal(g.arguments(), o.arguments()) && len(g.Broken()) == 0
}

// List returns the guarded tables of the database, by name, and then those that are only
// recorded as guarded. conn's role must be a superuser, or a member of the control role.
func List(ctx context.Context, conn *pgx.Conn) ([]Guard, error) {
	var list []Guard
	err := inTransaction(ctx, conn, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err = becomeControl(ctx, tx); err != nil {
			return err
		}
		if list, err = Read(ctx, tx); err != nil {
			return err
		}
		lost, err := lost(ctx, tx)
		list = append(list, lost...)
		return err
	})
	if errors.Is(err, errOutcomeUnknown) { // it has changed nothing, and everything has been read
		err = nil
	}
	return list, err
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Read reads the guards as the control role; only those that one of the tables is part of,
// if there are any. It compares names, because that role may not look into every schema.
func Read(ctx context.Context, q querier, tables ...string) ([]Guard, error) {
	rows, err := q.Query(ctx, `SELECT g.resource, coalesce(g.stamp, ''), g.root::text, g.relation::text, g.options, g.writes, g.truncates, g.behind
		FROM fencepost.guards g WHERE $1 OR EXISTS (SELECT FROM fencepost.guards p WHERE p.root = g.root AND p.fence = g.fence AND p.relation::text = ANY($2))
		ORDER BY g.root::text, g.fence, g.relation <> g.root, g.relation::text`, len(tables) == 0, tables)
	if err != nil {
		return nil, fmt.Errorf("read the guards: %w", err)
	}
	var list []Guard
	var resource, stamp, root, options string
	var r Relation
	_, err = pgx.ForEachRow(rows, []any{&resource, &stamp, &root, &r.Name, &options, &r.Writes, &r.Truncates, &r.LaterTriggers}, func() error {
		if n := len(list); n == 0 || list[n-1].Table != root || list[n-1].Resource != resource {
			arguments, err := decode(options)
			if err != nil {
				return err
			}
			list = append(list, Guard{Options: Options{Resource: resource, Table: root, Stamp: stamp, Warn: arguments[0] == "warn", Except: arguments[1:]}})
		}
		g := &list[len(list)-1]
		g.Relations = append(g.Relations, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the guards: %w", err)
	}
	return list, nil
}

// decode returns a trigger's arguments, each of which ends with a zero byte. There is
// always one.
func decode(options string) ([]string, error) {
	raw, err := hex.DecodeString(options)
	if err != nil {
		return nil, fmt.Errorf("decode the arguments of a trigger: %w", err)
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00"), nil
}

// Remove removes the guard of a table, with its triggers on partitions and children. The
// column of a stamp stays. Of a table that is only recorded as guarded, it removes the
// record. conn's role must own the tables, and be a superuser or a member of the control
// role.
func Remove(ctx context.Context, conn *pgx.Conn, table string) (Guard, error) {
	var g Guard
	err := retry(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
		until := time.Now().Add(lockTimeout)
		t, err := find(ctx, tx, table)
		if err != nil {
			return err
		}
		if err := becomeControl(ctx, tx); err != nil {
			return err
		}
		if g, err = removable(ctx, tx, t); err != nil {
			return err
		}
		if !g.Lost() {
			if err := dropAll(ctx, tx, t, until); err != nil {
				return err
			}
		}
		_, err = record(ctx, tx, g.Resource, 0, t.name)
		return err
	})
	return g, err
}

// removable returns the guard of a table that can be removed.
func removable(ctx context.Context, tx pgx.Tx, t relation) (Guard, error) {
	list, err := Read(ctx, tx, t.name)
	if err != nil {
		return Guard{}, err
	}
	forgotten, err := lost(ctx, tx)
	if err != nil {
		return Guard{}, err
	}
	mine := func(g Guard) bool { return g.Table == t.name }
	if at := slices.IndexFunc(list, mine); at >= 0 {
		return list[at], nil
	}
	if at := slices.IndexFunc(forgotten, mine); at >= 0 {
		return forgotten[at], nil
	}
	switch {
	case t.oid == 0:
		return Guard{}, missing(t.name)
	case len(list) == 0:
		return Guard{}, fmt.Errorf("table %s is not guarded: nothing changed", t.name)
	}
	return Guard{}, fmt.Errorf("table %s is guarded as a part of %s: remove the guard of that", t.name, list[0].Table)
}

// dropAll drops the triggers of a table, its partitions and its children.
func dropAll(ctx context.Context, tx pgx.Tx, t relation, until time.Time) error {
	if err := becomeSelf(ctx, tx); err != nil {
		return err
	}
	all, err := tree(ctx, tx, t.name)
	if err != nil {
		return err
	}
	if err := lock(ctx, tx, names(all), exclusive, until); err != nil {
		return err
	}
	list, err := presents(ctx, tx, oids(all))
	if err != nil {
		return err
	}
	for _, sql := range drops(all, list) {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return fmt.Errorf("remove the guard of table %s (%s): %w", t.name, sql, err)
		}
	}
	return nil
}

// record has the schema record the tables that a resource guards, and one more that is about
// to be guarded, and forget one; 0 and "" for none. It returns the id of the resource's
// fence.
func record(ctx context.Context, tx pgx.Tx, resource string, more uint32, forget string) (fence int32, err error) {
	if err := becomeControl(ctx, tx); err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, "SELECT f.id FROM fencepost.fence f WHERE f.resource = $1", resource).Scan(&fence)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return 0, fmt.Errorf("this database has no resource %q: let a worker of it connect first, or run as the control role: SELECT fencepost.register('%s')",
			resource, strings.ReplaceAll(resource, "'", "''"))
	case err != nil:
		return 0, fmt.Errorf("look for resource %q: %w", resource, err)
	}
	if _, err := tx.Exec(ctx, "SELECT fencepost.record_guards($1, nullif($2, 0::oid), nullif($3, ''))", fence, more, forget); err != nil {
		return 0, fmt.Errorf("record the guarded tables of resource %q: %w", resource, err)
	}
	return fence, nil
}
