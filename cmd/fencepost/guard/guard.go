package guard

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	// Relations are the table, its partitions and its children by inheritance.
	Relations []Relation
}

// Relation is a table with the triggers of a guard.
type Relation struct {
	Name string
	// Writes and Truncates say whether the trigger for rows, and the one for TRUNCATE, is
	// in force.
	Writes, Truncates bool
}

// Broken returns the relations of which a trigger is missing or disabled.
func (g Guard) Broken() []string {
	var broken []string
	for _, r := range g.Relations {
		if !r.Writes || !r.Truncates {
			broken = append(broken, r.Name)
		}
	}
	return broken
}

// same reports whether the table is guarded as o says, with every trigger in force.
func (g Guard) same(o Options) bool {
	return g.Resource == o.Resource && g.Stamp == o.Stamp && slices.Equal(g.arguments(), o.arguments()) && len(g.Broken()) == 0
}

// List returns the guarded tables of the database, by name. conn's role must be a
// superuser, or a member of the control role.
func List(ctx context.Context, conn *pgx.Conn) ([]Guard, error) {
	var list []Guard
	err := inTransaction(ctx, conn, func(tx pgx.Tx) (err error) {
		if err = becomeControl(ctx, tx); err == nil {
			list, err = Read(ctx, tx, "")
		}
		return err
	})
	return list, err
}

// querier is a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Read reads the guards as the control role; only those that a table is part of, if that
// is not "". It compares names, because that role may not look into every schema.
func Read(ctx context.Context, q querier, table string) ([]Guard, error) {
	rows, err := q.Query(ctx, `SELECT g.resource, coalesce(g.stamp, ''), g.root::text, g.relation::text, g.options, g.writes, g.truncates
		FROM fencepost.guards g WHERE $1 = '' OR EXISTS (SELECT FROM fencepost.guards p WHERE p.root = g.root AND p.relation::text = $1)
		ORDER BY g.root::text, g.relation <> g.root, g.relation::text`, table)
	if err != nil {
		return nil, fmt.Errorf("read the guards: %w", err)
	}
	var list []Guard
	var resource, stamp, root, options string
	var r Relation
	_, err = pgx.ForEachRow(rows, []any{&resource, &stamp, &root, &r.Name, &options, &r.Writes, &r.Truncates}, func() error {
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
// column of a stamp stays. conn's role must own the tables, and be a superuser or a
// member of the control role.
func Remove(ctx context.Context, conn *pgx.Conn, table string) (Guard, error) {
	var g Guard
	err := retry(ctx, conn, func(tx pgx.Tx) error {
		name, err := find(ctx, tx, table)
		if err != nil {
			return err
		}
		if err := becomeControl(ctx, tx); err != nil {
			return err
		}
		list, err := Read(ctx, tx, name)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(list, func(g Guard) bool { return g.Table == name })
		switch {
		case len(list) == 0:
			return fmt.Errorf("table %s is not guarded: nothing changed", name)
		case at < 0:
			return fmt.Errorf("table %s is guarded as a part of %s: remove the guard of that", name, list[0].Table)
		}
		g = list[at]
		if err := becomeSelf(ctx, tx); err != nil {
			return err
		}
		if err := dropTriggers(ctx, tx, g.Relations); err != nil {
			return err
		}
		_, err = settle(ctx, tx, g.Resource, 0)
		return err
	})
	return g, err
}

// settle has the schema count the tables that a resource guards, and more that are about
// to be guarded. It returns the id of the resource's fence.
func settle(ctx context.Context, tx pgx.Tx, resource string, more int) (fence int32, err error) {
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
	if _, err := tx.Exec(ctx, "SELECT fencepost.count_guards($1, $2)", fence, more); err != nil {
		return 0, fmt.Errorf("count the guarded tables of resource %q: %w", resource, err)
	}
	return fence, nil
}
