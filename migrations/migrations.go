// Package migrations holds the SQL of the schema fencepost, and applies it.
//
// The schema lives in the database whose tables it protects: a fence elsewhere
// protects nothing. Everything in it belongs to one role, the control role, that
// Fencepost connects as.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"sort"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

//go:embed *.sql
var embedded embed.FS

// DefaultControl is the name of the control role unless Options say otherwise.
const DefaultControl = "fencepost"

// lockKey is the advisory lock that two migrations of one database share.
const lockKey = 0x66656e6365706f73 // "fencepos"

// Options say whom the schema is for.
type Options struct {
	// Control is the role that owns the schema and that Fencepost connects as.
	// Empty means the role that runs the migration.
	Control string
	// Password, if not empty, is for a control role that does not exist yet: it
	// is then made, with this password. Without it a missing role is an error.
	Password string
	// WorkerRoles, if not empty, says which roles may read the fence from now on,
	// in place of those named before; Everybody stands for all. Later migrations
	// keep it. A role that does not exist is an error.
	WorkerRoles []string
}

// Everybody is the worker role that stands for all: what holds until another is
// named. No role can have this name.
const Everybody = "public"

// State is what a database's schema is at.
type State struct {
	Version int // highest applied migration, 0 if the schema is missing
	Latest  int // highest migration of this binary
	Applied []Applied
}

// Applied is one migration that a database has.
type Applied struct {
	Version int
	Name    string
	At      time.Time
}

// ErrNewer says that the database was migrated by a later Fencepost.
var ErrNewer = errors.New("the schema fencepost is newer than this binary")

// RightError says which right is missing, for whom, and how to give it.
type RightError struct {
	Role  string // who lacks it
	Right string // what is lacking
	Fix   string // SQL that a superuser, or the owner, runs to give it
}

func (e *RightError) Error() string {
	return fmt.Sprintf("role %q lacks %s; run as a superuser: %s", e.Role, e.Right, e.Fix)
}

// file is one migration of this binary.
type file struct {
	version int
	name    string
	sql     string
}

var fileName = regexp.MustCompile(`^(\d{3})_([a-z0-9_]+)\.sql$`)

// list reads the migrations in order. Numbers begin at 1 and leave no gap, so
// that two branches which both add one are noticed.
func list(from fs.FS) ([]file, error) {
	names, err := fs.Glob(from, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	sort.Strings(names)
	var files []file
	for _, name := range names {
		parts := fileName.FindStringSubmatch(name)
		if parts == nil {
			return nil, fmt.Errorf("migration %s: the name must be like 001_words.sql", name)
		}
		version, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, fmt.Errorf("migration %s: read its number: %w", name, err)
		}
		if want := len(files) + 1; version != want {
			return nil, fmt.Errorf("migration %s: the next number is %03d: numbers have no gap and no double", name, want)
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		files = append(files, file{version: version, name: parts[2], sql: string(text)})
	}
	if len(files) == 0 {
		return nil, errors.New("this binary holds no migrations")
	}
	return files, nil
}

// Latest is the highest migration of this binary.
func Latest() (int, error) {
	files, err := list(embedded)
	if err != nil {
		return 0, err
	}
	return files[len(files)-1].version, nil
}

// Status reads what the database's schema is at. A missing schema is version 0,
// not an error.
func Status(ctx context.Context, conn *pgx.Conn) (State, error) {
	latest, err := Latest()
	if err != nil {
		return State{}, err
	}
	state := State{Latest: latest}
	var there bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'fencepost' AND c.relname = 'schema_version')`).Scan(&there); err != nil {
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

// Warnings says what an operator should know of what others than the control role
// can do to the fence of a migrated database.
func Warnings(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, "SELECT fencepost.warnings()")
	if err != nil {
		return nil, fmt.Errorf("ask what is to be warned of: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("ask what is to be warned of: %w", err)
	}
	return list, nil
}
