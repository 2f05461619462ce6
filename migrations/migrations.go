// Package migrations contains the SQL of the schema fencepost and applies it.
//
// The schema lives in the database whose tables it protects: a fence elsewhere protects
// nothing. Everything in it belongs to the control role, the role that Fencepost
// connects as.
package migrations

import (
	"cmp"
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

	"github.com/fencepost/fencepost/fencing/owner"
)

//go:embed *.sql
var embedded embed.FS

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
	// WorkerRoles, if not empty, are the roles that may read the fence from now on;
	// they replace those named before, and later migrations keep them. Everybody stands
	// for all roles. A role that does not exist is an error.
	WorkerRoles []string
	// LockTimeout is how long each step waits at most for a lock that somebody holds; 0 means
	// DefaultLockTimeout. Others who need what a step waits for may wait behind it.
	LockTimeout time.Duration
}

// DefaultLockTimeout is the default of Options.LockTimeout.
const DefaultLockTimeout = time.Minute

func (o *Options) lockTimeout() time.Duration { return cmp.Or(o.LockTimeout, DefaultLockTimeout) }

// Everybody is the worker role that stands for all roles, which is the default. No role
// can have this name.
const Everybody = "public"

// Needed is the lowest version of the schema that this binary's proxies and commands work with. What
// is newer adds something that they can do without.
const Needed = 29

// State is the state of a database's schema.
type State struct {
	Version int // highest applied migration, 0 if the schema is missing
	Latest  int // highest migration of this binary
	Applied []Applied
}

// Applied is a migration that has been applied to a database.
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

// file is one migration of this binary.
type file struct {
	version int
	name    string
	sql     string
}

var fileName = regexp.MustCompile(`^(\d{3})_([a-z0-9_]+)\.sql$`)

// list reads the migrations in order. Their numbers start at 1 without a gap, so that
// two branches that both add one are noticed.
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
			return nil, fmt.Errorf("migration %s: the name must have the form 001_words.sql", name)
		}
		version, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, fmt.Errorf("migration %s: parse its number: %w", name, err)
		}
		if want := len(files) + 1; version != want {
			return nil, fmt.Errorf("migration %s: the next number must be %03d, without gaps and duplicates", name, want)
		}
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		files = append(files, file{version: version, name: parts[2], sql: string(text)})
	}
	if len(files) == 0 {
		return nil, errors.New("this binary contains no migrations")
	}
	return files, nil
}

// Latest returns the highest migration of this binary.
func Latest() (int, error) {
	files, err := list(embedded)
	if err != nil {
		return 0, err
	}
	return files[len(files)-1].version, nil
}

// Status reads the state of the database's schema. A missing schema is version 0, not
// an error. One that is not Fencepost's is an *owner.ForeignError. The search_path of conn must begin with pg_catalog.
func Status(ctx context.Context, conn *pgx.Conn) (State, error) {
	latest, err := Latest()
	if err != nil {
		return State{}, err
	}
	state := State{Latest: latest}
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
