package evidence

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// cancelTimeout is how long a statement may take to end after it was cancelled.
const cancelTimeout = 5 * time.Second

// About is the help of the command.
const About = `
Usage: fencepost audit [--resource RESOURCE] [--worker WORKER] [--since TIME] [--json] --dsn DSN
       fencepost audit --verify [--resource RESOURCE] [--table TABLE] [--since TIME] [--json] --dsn DSN

Shows who held which epoch, through which proxy, from when to when, as the ledger of a
database has it; how many writes were refused meanwhile, how the term ended (ENDED), and
how long no worker was confirmed as the leader at its end (GAP); and what was refused and
discarded, as the proxies have counted it there (audit.table). Their audit logs have each
refusal.

With --verify it reads every table that is guarded with a stamp, and looks for
transactions that wrote rows under an epoch after the next one was granted, or under
an epoch that was granted to nobody. It changes nothing, and reads a table in parts of
64 MiB, each by a statement with a snapshot of its own.

--since is a time (2026-03-02T11:00:00Z) or an age (36h): terms and refusals that ended
earlier are left out, and with --verify the rows of their epochs are not checked.

The DSN's role must be a superuser, or a member of the control role that may read the
tables. Without --dsn the environment variable FENCEPOST_DSN is used.

Exit codes: 0 nothing was found, 1 something was found, 2 wrong command line, 3 nothing
was found, but some rows or tables could not be verified. docs/evidence.md says what this
proves, and what it does not.`

// Flags are those of the command, but for the DSN.
type Flags struct {
	Options
	since        string
	verify, json bool
}

// Add adds the flags.
func (f *Flags) Add(fs *flag.FlagSet) {
	fs.StringVar(&f.Resource, "resource", "", "only the `resource` of this name")
	fs.StringVar(&f.Worker, "worker", "", "only the terms and refusals of this `worker`")
	fs.StringVar(&f.Table, "table", "", "with --verify, only this `table` with its schema, its partitions and its children")
	fs.StringVar(&f.since, "since", "", "leave out what ended before this `time`, or longer ago than this age")
	fs.BoolVar(&f.verify, "verify", false, "verify the rows of the stamped tables")
	fs.BoolVar(&f.json, "json", false, "print JSON")
}

// Check returns what is wrong with the flags. It must be called before Run.
func (f *Flags) Check(now time.Time) error {
	switch {
	case f.verify && f.Worker != "":
		return errors.New("--verify takes no --worker: a row shows its epoch, not its worker")
	case !f.verify && f.Table != "":
		return errors.New("--table is only for --verify")
	case f.since == "":
		return nil
	}
	if age, err := time.ParseDuration(f.since); err == nil && age > 0 {
		f.Since = now.Add(-age)
		return nil
	}
	at, err := time.Parse(time.RFC3339, f.since)
	if err != nil {
		return fmt.Errorf("--since is %q: give a time like 2026-03-02T11:00:00Z, or an age like 36h", f.since)
	}
	f.Since = at
	return nil
}

// Run writes what the flags ask for. Its error may be a *FoundError or an *UnverifiedError.
func (f *Flags) Run(ctx context.Context, conn *pgx.Conn, out io.Writer) error {
	if f.verify {
		report, err := Verify(ctx, conn, f.Options)
		if err != nil {
			return err
		}
		return errors.Join(f.write(out, report), report.Err())
	}
	history, err := Look(ctx, conn, f.Options)
	if err != nil {
		return err
	}
	return f.write(out, history)
}

// write writes what was found in the wanted form.
func (f *Flags) write(out io.Writer, found interface {
	WriteText(io.Writer) error
	WriteJSON(io.Writer) error
}) error {
	if f.json {
		return found.WriteJSON(out)
	}
	return found.WriteText(out)
}

// Cancelling has the end of a context cancel the statement at the server, which would otherwise
// continue reading a table.
func Cancelling(cfg *pgx.ConnConfig) {
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: cancelTimeout}
	}
}
