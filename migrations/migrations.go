// Package migrations contains the SQL of the schema fencepost and applies it.
//
// The schema lives in the database whose tables it protects: a fence elsewhere protects
// nothing. Everything in it belongs to the control role, the role that Fencepost
// connects as.
//
// Each subject has a file: fence.sql, registry.sql and so on. Together they make the whole
// schema of this release where there is none. A release that changes it edits these files, and
// adds an upgrade, upgrade_002_words.sql, that brings a schema of the version before to the
// same state: it changes tables, and drops what CREATE OR REPLACE cannot replace. After the
// last upgrade, all functions and views are made anew from the files of the subjects.
package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing/owner"
)

// DefaultControl is the default name of the control role.
const DefaultControl = "fencepost"

// lockKey is the advisory lock that all migrations of one database share.
const lockKey = 0x66656e6365706f73 // "fencepos"

// Options configures a migration.
type Options struct {
	// Control is the role that owns the schema and that Fencepost connects as.
	// Empty means the role that runs the migration.
	Control string
	// Password, if not empty, is the password with which a missing control role is
	// created. Without it a missing role is an error.
	Password string
	// ClaimRoles are roles that may call fencepost.claim from now on, in addition to those that were named before. One that
	// does not exist is an error.
	ClaimRoles []string
	// LockTimeout is how long a migration waits at most for each lock that somebody holds; 0 means
	// DefaultLockTimeout. Others who need what it waits for may have to wait for it.
	LockTimeout time.Duration
}

// DefaultLockTimeout is the default of Options.LockTimeout.
const DefaultLockTimeout = time.Minute

// Needed is the lowest version of the schema that this binary's proxies and commands work with. What
// is newer adds something that they can do without.
const Needed = 1

// State is the state of a database's schema.
type State struct {
	Version int // of the schema, 0 if it is missing
	Latest  int // that this binary makes
	Applied []Applied
}

// Applied is what brought the schema of a database to a version: the schema of a release, or an upgrade.
type Applied struct {
	Version int
	Name    string
	At      time.Time
}

// ErrNewer means that the database was migrated by a later version of Fencepost.
var ErrNewer = errors.New("the schema fencepost is newer than this binary")

// RightError says which privilege is missing, for whom, and how to grant it.
type RightError struct {
	Role  string // the role that lacks it
	Right string // the missing privilege
	Fix   string // SQL that grants it, for a superuser or the owner
}

func (e *RightError) Error() string {
	return fmt.Sprintf("role %q lacks %s; run as a superuser: %s", e.Role, e.Right, e.Fix)
}

// Status reads the state of the database's schema. A missing schema is version 0, not
// an error. One that is not Fencepost's is an *owner.ForeignError. The search_path of conn must begin with pg_catalog.
func Status(ctx context.Context, conn *pgx.Conn) (State, error) {
	known, err := embeddedRelease()
	if err != nil {
		return State{}, err
	}
	return known.status(ctx, conn)
}

func (r *release) status(ctx context.Context, conn *pgx.Conn) (State, error) {
	state := State{Latest: r.version()}
	if _, err := owner.Mine(ctx, conn); errors.Is(err, owner.ErrNoSchema) {
		return state, nil
	} else if err != nil {
		return State{}, err
	}
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'fencepost' AND c.relname = 'schema_version' AND c.relkind = 'r')`).Scan(&there); err != nil {
		return State{}, fmt.Errorf("look for the schema fencepost: %w", err)
	}
	if !there {
		return state, nil
	}
	rows, err := conn.Query(ctx, `SELECT version, name, applied_at FROM fencepost.schema_version ORDER BY version`)
	if err != nil {
		return State{}, fmt.Errorf("read fencepost.schema_version: %w", err)
	}
	state.Applied, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Applied])
	if err != nil {
		return State{}, fmt.Errorf("read fencepost.schema_version: %w", err)
	}
	if n := len(state.Applied); n > 0 {
		state.Version = state.Applied[n-1].Version
	}
	return state, nil
}

// Warnings returns what an operator should know about the power of other roles over the
// fence of a migrated database.
func Warnings(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, "SELECT fencepost.warnings()")
	if err != nil {
		return nil, fmt.Errorf("read the warnings: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the warnings: %w", err)
	}
	return list, nil
}
