package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/migrations"
)

const migrateAbout = `
Usage: fencepost migrate --dsn DSN [--control-role ROLE] [--claim-role ROLE ...]

Creates or updates the schema fencepost in the database that the DSN names. The
schema is per database: run it for each database whose tables are to be fenced.
Running it again, or twice concurrently, changes nothing. It makes again functions and
views of the schema that are missing; if a table is, it says what to do. A schema in
which there never was a row, as in a dump without data, is made anew.

The DSN's role must be a superuser or the control role itself. A missing control
role is created if FENCEPOST_CONTROL_PASSWORD contains a password for it.

The roles of workers need no right on the schema. Only a job that writes guarded
tables past the proxy calls a function of it, fencepost.claim: --claim-role lets a
role do that, and can be given several times. REVOKE USAGE ON SCHEMA fencepost
takes it back.

If another session holds a lock that the migration needs, migrate says which one, and
gives up after --lock-timeout. It has then changed nothing; run it again.

Without --dsn the environment variable FENCEPOST_DSN is used.`

func runMigrate(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("migrate", flag.ContinueOnError)
	dsn := fs.String("dsn", t.getenv("FENCEPOST_DSN"), "`DSN` of the database, e.g. postgres://user@host/db")
	control := fs.String("control-role", migrations.DefaultControl, "`role` that owns the schema and that Fencepost connects as")
	var claim roleList
	fs.Var(&claim, "claim-role", "`role` that may call fencepost.claim, past the proxy")
	lockTimeout := fs.Duration("lock-timeout", migrations.DefaultLockTimeout, "`duration` for which a lock is waited for that another session holds")
	hideDefault(fs, "dsn")
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(strings.TrimLeft(a, "-"), "worker-role") }) {
		return usagef("--worker-role is gone: workers need no right on the schema, so leave it out. Jobs that call fencepost.claim are named by --claim-role")
	}
	if err := parseFlags(t, fs, migrateAbout, args, 0); err != nil {
		return err
	}
	if *dsn == "" {
		return usagef("--dsn is required: it names the database to migrate")
	}
	if *lockTimeout < time.Millisecond {
		return usagef("--lock-timeout is %s: use 1ms or more", *lockTimeout)
	}
	waits := migrations.NewWaits(func(why string) { fmt.Fprintln(t.stderr, "waiting: "+why) })
	conn, err := connectAs(ctx, *dsn, waits.Configure)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var done migrations.Migrated
	err = waits.During(ctx, conn, func() (err error) {
		done, err = migrations.Up(ctx, conn, migrations.Options{
			Control: *control, Password: t.getenv("FENCEPOST_CONTROL_PASSWORD"), ClaimRoles: claim, LockTimeout: *lockTimeout})
		return err
	})
	if err != nil {
		return err
	}
	var database string
	if err := conn.QueryRow(ctx, "SELECT current_database()").Scan(&database); err != nil {
		return fmt.Errorf("read the database's name: %w", err)
	}
	for _, again := range done.Repaired {
		fmt.Fprintf(t.stdout, "made the missing %s again\n", again)
	}
	switch done.From {
	case 0:
		fmt.Fprintf(t.stdout, "database %s: made the schema fencepost, version %d\n", database, done.Version)
	case done.Version:
		fmt.Fprintf(t.stdout, "database %s: the schema fencepost is already at version %d\n", database, done.Version)
	default:
		fmt.Fprintf(t.stdout, "database %s: upgraded the schema fencepost from version %d to %d\n", database, done.From, done.Version)
	}
	for _, table := range done.Orphans {
		fmt.Fprintf(t.stdout, "table %s has a guard of an earlier schema, and refuses every write: guard it again (fencepost guard add)\n", table)
	}
	fmt.Fprintf(t.stdout, "It fences the tables of database %s only: run migrate for each database.\n", database)
	warnings, err := migrations.Warnings(ctx, conn)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		fmt.Fprintf(t.stderr, "warning: %s\n", w)
	}
	return nil
}

// roleList is a flag that can be given several times.
type roleList []string

func (l *roleList) String() string { return strings.Join(*l, ", ") }

// Set implements flag.Value.
func (l *roleList) Set(role string) error {
	if role == "" {
		return errors.New("the role is empty")
	}
	*l = append(*l, role)
	return nil
}

// hideDefault removes a flag's default, which may contain a password, from --help.
func hideDefault(fs *flag.FlagSet, name string) { fs.Lookup(name).DefValue = "" }

// parseDSN parses a DSN. The error contains nothing of it: where a DSN cannot be parsed, nobody knows
// which part of it is the password.
func parseDSN(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err == nil {
		return cfg, nil
	}
	what := "invalid"
	var parsing *pgconn.ParseConfigError
	if errors.As(err, &parsing) { // its text is "cannot parse `DSN`: what (cause)"
		what = strings.TrimPrefix(err.Error(), pgconn.NewParseConfigError(parsing.ConnString, "", nil).Error())
		if cause := parsing.Unwrap(); cause != nil {
			what = strings.TrimSuffix(what, " ("+cause.Error()+")")
		}
	}
	var file *fs.PathError
	if errors.As(err, &file) {
		what += ": " + file.Err.Error()
	}
	return nil, usagef("the DSN cannot be used: %s. It is postgres://USER:PASSWORD@HOST:PORT/DATABASE, with %%40 for @ in the password, "+
		"%%3A for : and %%2F for /, or host=HOST port=PORT user=USER password='PASSWORD' dbname=DATABASE", what)
}

// connect opens one connection. The error does not contain the password.
func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	return connectAs(ctx, dsn, func(*pgx.ConnConfig) {})
}

// connectAs opens one connection whose configuration was changed.
func connectAs(ctx context.Context, dsn string, change func(*pgx.ConnConfig)) (*pgx.Conn, error) {
	cfg, err := parseDSN(dsn)
	if err != nil {
		return nil, err
	}
	maps.Copy(cfg.RuntimeParams, store.TextSettings)
	cfg.RuntimeParams["application_name"] = "fencepost"
	cfg.RuntimeParams["search_path"] = "pg_catalog,pg_temp" // no function of a user replaces a built-in one
	// Whoever owns the database could set another role for its sessions. What the DSN says comes later, and counts.
	cfg.RuntimeParams["options"] = strings.TrimSpace("-c role=none " + cfg.RuntimeParams["options"])
	change(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if r := fencing.OldServer(fencing.ServerMajor(conn.PgConn().ParameterStatus("server_version"))); r != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("connect to the database: %s. %s", r.Message, r.Hint)
	}
	return conn, nil
}
