package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/audit/evidence"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/lockwait"
	"github.com/fencepost/fencepost/internal/table"
)

// guardTimeout bounds how long a guard waits for transactions that use its table.
const guardTimeout = 2 * time.Minute

// guardConnectTimeout bounds how long a guard command waits for its connection.
const guardConnectTimeout = 10 * time.Second

const guardAbout = `
Usage: fencepost guard add --resource RESOURCE --table TABLE [--stamp COLUMN]
                           [--except ROLE ...] [--warn] --dsn DSN
       fencepost guard list --dsn DSN
       fencepost guard remove --table TABLE --dsn DSN

add puts triggers on a table, its partitions and its children by inheritance. From
then on only sessions whose backend is registered under the current epoch can write it:
those of the leader, which Fencepost registers, and those that have called
fencepost.claim. Everybody else is refused, whatever path the write takes. With
--stamp, each row carries the epoch under which it was last written; a missing column
is added, as a bigint without a default.

--except names a role whose sessions are let pass, by the name under which they have
logged in. With --warn everybody is. Postgres's log has a line for each transaction that
would have been refused. Run add again to change these, and for partitions and children
that were made since.

remove drops the triggers. The column of a stamp stays. For a table that is recorded as
guarded and has no guard, because it was dropped or created again, it removes the record.

While transactions use the table, add and remove try again for two minutes, in short
attempts behind which nobody waits for long, and say which sessions those are.

The DSN's role must be a superuser, or own the table and be a member of the control
role. Without --dsn the environment variable FENCEPOST_DSN is used. docs/guards.md says
what a guard does and what it costs.`

// runGuard runs guard add, guard list and guard remove.
func runGuard(ctx context.Context, t terminal, args []string) error {
	verb := ""
	if len(args) > 0 && (args[0] == "add" || args[0] == "list" || args[0] == "remove") {
		verb, args = args[0], args[1:]
	}
	var o guard.Options
	fs := flag.NewFlagSet("guard", flag.ContinueOnError)
	dsn := fs.String("dsn", t.getenv("FENCEPOST_DSN"), "`DSN` of the database, e.g. postgres://user@host/db")
	hideDefault(fs, "dsn")
	if verb == "add" || verb == "remove" {
		fs.StringVar(&o.Table, "table", "", "`table` with its schema, e.g. public.invoices")
	}
	if verb == "add" {
		fs.StringVar(&o.Resource, "resource", "", "`resource` whose leader may write the table")
		fs.StringVar(&o.Stamp, "stamp", "", "`column` that takes the epoch of each write")
		fs.Var((*roleList)(&o.Except), "except", "login `role` that is let pass; may be given several times")
		fs.BoolVar(&o.Warn, "warn", false, "let everybody pass, and say in Postgres's log who would be refused")
	}
	if err := parseFlags(t, fs, guardAbout, args, 0); err != nil {
		return err
	}
	switch {
	case verb == "":
		return usagef("no action given: use guard add, guard list or guard remove")
	case *dsn == "":
		return usagef("--dsn is required: it names the database")
	case verb != "list" && o.Table == "":
		return usagef("--table is required")
	case verb == "add" && o.Resource == "":
		return usagef("--resource is required: it says whose leader may write the table")
	}
	ctx, cancel := context.WithTimeout(ctx, guardTimeout)
	defer cancel()
	connecting, connected := context.WithTimeout(ctx, guardConnectTimeout)
	conn, err := connectAs(connecting, *dsn, evidence.Cancelling) // so that what was begun can be undone
	connected()
	if err != nil {
		return err
	}
	defer closeSoon(conn)
	if verb == "list" {
		return listGuards(ctx, t, conn)
	}
	waits := lockwait.New(func(who string) {
		fmt.Fprintf(t.stderr, "waiting: table %s is used by %s; giving up after %s\n", table.Dash(o.Table), table.Dash(who), guardTimeout)
	})
	err = waits.During(ctx, conn, func() error {
		if verb == "add" {
			return addGuard(ctx, t, conn, o)
		}
		return removeGuard(ctx, t, conn, o.Table)
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && waits.Last() != "" {
		return fmt.Errorf("%w; the last ones were %s", err, table.Dash(waits.Last()))
	}
	return err
}

func addGuard(ctx context.Context, t terminal, conn *pgx.Conn, o guard.Options) error {
	g, changed, err := guard.Add(ctx, conn, o)
	switch {
	case err != nil:
		return err
	case !changed:
		fmt.Fprintf(t.stdout, "table %s is guarded so already: nothing changed\n", table.Dash(g.Table))
	default:
		fmt.Fprintf(t.stdout, "table %s is guarded by resource %s now%s%s\n", table.Dash(g.Table), table.Dash(g.Resource), parts(g), letPass(g))
	}
	return nil
}

// parts says how many partitions and children a guard has.
func parts(g guard.Guard) string {
	if n := len(g.Relations) - 1; n > 0 {
		return fmt.Sprintf(", with %d partitions and children", n)
	}
	return ""
}

// letPass says whom a guard lets pass.
func letPass(g guard.Guard) string {
	switch {
	case g.Warn:
		return "; it only warns, in Postgres's log"
	case len(g.Except) > 0:
		return "; it lets pass " + table.Dash(strings.Join(g.Except, ", "))
	}
	return ""
}

func listGuards(ctx context.Context, t terminal, conn *pgx.Conn) error {
	list, err := guard.List(ctx, conn)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Fprintln(t.stdout, "no table is guarded")
		return nil
	}
	var rows [][]string
	var notes []string
	for _, g := range list {
		pass := strings.Join(g.Except, ", ")
		if g.Warn {
			pass = "everybody"
		}
		rows = append(rows, []string{g.Table, g.Resource, g.Stamp, pass, strconv.Itoa(len(g.Relations)), strings.Join(g.Broken(), ", ")})
		if g.Lost() {
			notes = append(notes, fmt.Sprintf("table %s is recorded as guarded, and has no guard: run guard add again that guarded it, or guard remove", g.Table))
		}
		if behind := g.LaterTriggers(); len(behind) > 0 {
			notes = append(notes, fmt.Sprintf("triggers that fire behind the guard of table %s could change its stamps: %s. Rename them (ALTER TRIGGER ... RENAME TO), so that their names sort before ~fencepost",
				g.Table, strings.Join(behind, ", ")))
		}
	}
	if err := table.Print(t.stdout, "TABLE\tRESOURCE\tSTAMP\tLETS PASS\tTABLES\tNOT IN FORCE ON", rows); err != nil {
		return err
	}
	for _, note := range notes {
		fmt.Fprintln(t.stdout, table.Dash(note))
	}
	return nil
}

// closeSoon closes a connection, even if its server hangs.
func closeSoon(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

func removeGuard(ctx context.Context, t terminal, conn *pgx.Conn, name string) error {
	g, err := guard.Remove(ctx, conn, name)
	if err != nil {
		return err
	}
	if g.Lost() {
		fmt.Fprintf(t.stdout, "table %s is not recorded as guarded any more: it had no guard\n", table.Dash(g.Table))
		return nil
	}
	fmt.Fprintf(t.stdout, "table %s is not guarded any more%s\n", table.Dash(g.Table), parts(g))
	if g.Stamp != "" {
		fmt.Fprintf(t.stdout, "its column %s stays: drop it if nobody needs it\n", table.Dash(g.Stamp))
	}
	return nil
}

// runAudit shows what proves that nothing was written past the guards.
func runAudit(ctx context.Context, t terminal, args []string) error {
	var f evidence.Flags
	fs := flag.NewFlagSet("audit", flag.ContinueOnError)
	dsn := fs.String("dsn", t.getenv("FENCEPOST_DSN"), "`DSN` of the database, e.g. postgres://user@host/db")
	hideDefault(fs, "dsn")
	f.Add(fs)
	if err := parseFlags(t, fs, evidence.About, args, 0); err != nil {
		return err
	}
	if *dsn == "" {
		return usagef("--dsn is required: it names the database")
	}
	if err := f.Check(time.Now()); err != nil {
		return usageError{err.Error()}
	}
	connecting, connected := context.WithTimeout(ctx, guardConnectTimeout)
	conn, err := connectAs(connecting, *dsn, evidence.Cancelling)
	connected()
	if err != nil {
		return err
	}
	defer closeSoon(conn)
	return f.Run(ctx, conn, t.stdout)
}
