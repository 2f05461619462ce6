package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/internal/table"
	"github.com/fencepost/fencepost/migrations"
)

// orderTimeout bounds an order, which may wait for transactions like a grant.
const orderTimeout = 2 * time.Minute

// sharersTimeout bounds the question who else an order concerns: it must not use up the time of the orders that follow.
const sharersTimeout = 5 * time.Second

const connecting = `
The command connects to the database as the control role: with the configuration
and --database, or with --dsn. If upstream.address names several hosts and one of
them cannot be looked at, a command that changes something wants --at HOST, which
says that you know HOST to be the primary. Every proxy acts on the order within about a second,
whichever lease service it uses. The database keeps who gave it (--by, and the role
that the server knows) and why (--reason).`

const evictAbout = `
Usage: fencepost evict RESOURCE [--worker WORKER] [--for DURATION] [--reason TEXT]
                       (--database NAME [--config FILE] | --dsn DSN)

Takes the lead of a resource from the worker that has it, at once: its next write is
refused (ZF001), and any other worker may take over. With --worker nothing happens
unless that worker leads, so that running the command again does not take the lead
from the next one. With --for the worker may not campaign for so long. A token that
is in force while the resource is paused does not lead again. If several workers
have led by one token, it ends for all of them, and the command names each.

If the resource has on_stale: discard, the writes of these workers do not fail: on the
connections that they have, they are discarded without an error. Restart them.
` + connecting

const pauseAbout = `
Usage: fencepost pause RESOURCE [--new] [--reason TEXT] (--database NAME [--config FILE] | --dsn DSN)

Takes the lead of a resource from the worker that has it, and lets nobody lead until
fencepost resume. Workers stay connected and may read. --new pauses a resource for
which no worker has connected yet.

If the resource has on_stale: discard, the writes of the worker that led do not fail: on
the connections that it has, they are discarded without an error, also after resume.
Restart the worker.
` + connecting

const resumeAbout = `
Usage: fencepost resume RESOURCE [--worker WORKER] (--database NAME [--config FILE] | --dsn DSN)

Ends the pause of a resource. With --worker it lets that worker campaign again, which
fencepost evict --for has forbidden.
` + connecting

// atFlag explains the flag --at.
const atFlag = "`host` of upstream.address that is the primary, if another one cannot be looked at or accepts writes too"

// orderOptions are the flags of all commands that give orders.
type orderOptions struct {
	config, database, dsn string
	at                    string // the host that is the primary, if there are several
	by, reason            string
	waits                 time.Duration // how long the command waits for an outcome, in addition to what it does

	cfg *config.Config // nil with --dsn, which reads none
}

func (o *orderOptions) flags(fs *flag.FlagSet, t terminal) {
	o.target(fs, t)
	fs.StringVar(&o.by, "by", "", "`who` gives the order, if not this user of this host")
	fs.StringVar(&o.reason, "reason", "", "`text` for the errors of workers and for the log")
}

func (o *orderOptions) target(fs *flag.FlagSet, t terminal) {
	fs.StringVar(&o.config, "config", t.getenv("FENCEPOST_CONFIG"), "configuration `file`, as for serve")
	fs.StringVar(&o.database, "database", "", "`name` of the database")
	fs.StringVar(&o.dsn, "dsn", "", "`DSN` of the database, as the control role, in place of the configuration")
	fs.StringVar(&o.at, "at", "", atFlag)
}

// parseOrder parses a command's flags, which may stand on both sides of its one argument.
// what names the argument; if it is empty, there is none.
func parseOrder(t terminal, fs *flag.FlagSet, about, what string, args []string) (argument string, err error) {
	if err := parseFlags(t, fs, about, args, len(args)); err != nil {
		return "", err
	}
	if what != "" && fs.NArg() > 0 {
		argument = fs.Arg(0)
		if err := parseFlags(t, fs, about, fs.Args()[1:], 0); err != nil {
			return "", err
		}
	}
	switch {
	case argument == "" && what != "":
		return "", usagef("no %s given", what)
	case argument == "" && fs.NArg() > 0:
		return "", usagef("unexpected argument %q", fs.Arg(0))
	}
	return argument, nil
}

// act opens the database and calls do, whose output is that of the command.
func (o *orderOptions) act(ctx context.Context, aim hosts.Aim, t terminal, do orderFunc) error {
	switch {
	case (o.dsn == "") == (o.database == ""):
		return usagef("give either --database, with the configuration, or --dsn")
	case o.dsn != "" && o.at != "":
		return usagef("--dsn and --at are mutually exclusive")
	}
	if o.dsn != "" {
		db, database, err := openDSN(ctx, o.dsn, aim.Notes)
		if err != nil {
			return err
		}
		defer db.Close()
		return do(ctx, t, db, table.Dash(database))
	}
	cfg, err := loadConfig(o.config, t.environ())
	if err != nil {
		return err
	}
	o.cfg = &cfg
	return hosts.Act(ctx, cfg, o.database, aim, func(ctx context.Context, db *fence.Database, out io.Writer) error {
		t.stdout = out
		return do(ctx, t, db, table.Dash(o.database))
	})
}

// openDSN opens the fence of the database that a DSN names. What is waited for is written to notes.
func openDSN(ctx context.Context, dsn string, notes io.Writer) (*fence.Database, string, error) {
	cfg, err := parseDSN(dsn)
	if err != nil {
		return nil, "", err
	}
	if another := slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != cfg.Host || f.Port != cfg.Port }); another {
		return nil, "", usagef("--dsn names several hosts: name the primary only, or give --database with the configuration")
	}
	security, err := negotiated(ctx, cfg)
	if err != nil {
		return nil, "", err
	}
	address := net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
	if strings.HasPrefix(cfg.Host, "/") { // a directory, with the server's Unix socket
		address = fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port)
	}
	db, err := fence.Open(ctx, fence.Config{
		Config: store.Config{
			Address: address, Database: cfg.Database, User: cfg.User, Password: cfg.Password, TLS: security, SchemaVersion: migrations.Needed,
		},
		Blocked: hosts.Waiting(notes),
	})
	return db, cfg.Database, err
}

// negotiated connects as a DSN says, and returns the TLS that was used, nil for none: with
// sslmode=prefer, which is the default, that depends on the server.
func negotiated(ctx context.Context, cfg *pgx.ConnConfig) (*tls.Config, error) {
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	_, secure := conn.PgConn().Conn().(*tls.Conn)
	if err := conn.Close(ctx); err != nil || !secure {
		return nil, err
	}
	if cfg.TLSConfig != nil {
		return cfg.TLSConfig, nil
	}
	i := slices.IndexFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.TLSConfig != nil })
	return cfg.Fallbacks[i].TLSConfig, nil
}

// orderer says who gives the order.
func (o *orderOptions) orderer() operator.Orderer {
	by := o.by
	if by == "" {
		name, host := "unknown", "unknown"
		if u, err := user.Current(); err == nil {
			name = u.Username
		}
		if h, err := os.Hostname(); err == nil {
			host = h
		}
		by = name + "@" + host
	}
	return operator.Orderer{AskedBy: by, Reason: o.reason}
}

// orderFunc does the work of a command at a database.
type orderFunc func(ctx context.Context, t terminal, db *fence.Database, database string) error

// give opens the database to change something, and calls do.
func (o *orderOptions) give(ctx context.Context, t terminal, do orderFunc) error {
	return o.run(ctx, hosts.Aim{At: o.at, Notes: t.stdout, Warnings: t.stderr, Out: t.stdout}, t, do)
}

// run opens the database and calls do. Its errors say what to do about a refusal.
func (o *orderOptions) run(ctx context.Context, aim hosts.Aim, t terminal, do orderFunc) error {
	limit := orderTimeout + o.waits
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the command was given up after %s", limit))
	defer cancel()
	err := o.act(ctx, aim, t, do)
	var refusal *fencing.Refusal
	if errors.As(err, &refusal) {
		return fmt.Errorf("%s. %s", refusal.Message, refusal.Hint)
	}
	if errors.Is(err, fence.ErrNoResource) {
		return fmt.Errorf("%w: fencepost resource list shows all resources; one begins when a worker first connects for it", err)
	}
	return err
}

func runEvict(ctx context.Context, t terminal, args []string) error {
	var o orderOptions
	fs := flag.NewFlagSet("evict", flag.ContinueOnError)
	o.flags(fs, t)
	worker := fs.String("worker", "", "`worker` that loses the lead, if it has it")
	length := fs.String("for", "", "`duration` for which the worker may not campaign, such as 10m or 2d")
	resource, err := parseOrder(t, fs, evictAbout, "resource", args)
	if err != nil {
		return err
	}
	var d time.Duration
	if *length != "" {
		if d, err = parseDays("--for", *length); err != nil {
			return err
		}
	}
	return o.give(ctx, t, func(ctx context.Context, t terminal, db *fence.Database, database string) error {
		o.sayGrace(t, database)
		order, err := operator.New(db).Evict(ctx, resource, *worker, d, o.orderer())
		if err != nil {
			return err
		}
		o.sayShadow(t, database, resource)
		switch {
		case order == nil && *worker == "":
			fmt.Fprintf(t.stdout, "database %s: nobody leads resource %s: nothing changed\n", database, table.Dash(resource))
			return nil
		case order == nil:
			fmt.Fprintf(t.stdout, "database %s: worker %s does not lead resource %s: nothing changed\n", database, table.Dash(*worker), table.Dash(resource))
			return nil
		}
		switch {
		case sayEvicted(t, database, order):
			o.sayLost(ctx, t, db, database, order)
		case order.Epoch != 0: // the ledger does not say any more whose token it was
			fmt.Fprintf(t.stdout, "database %s: the token in force does not lead resource %s any more: nobody holds epoch %d\n", database, table.Dash(resource), order.Epoch)
		}
		if !order.Until.IsZero() {
			fmt.Fprintf(t.stdout, "database %s: worker %s may not campaign for resource %s until %s\n", database, table.Dash(order.Worker), table.Dash(resource),
				order.Until.Local().Format(time.DateTime))
		}
		return nil
	})
}

// sayGrace says how long running transactions have, unless the configuration says so.
func (o *orderOptions) sayGrace(t terminal, database string) {
	if o.cfg == nil {
		fmt.Fprintf(t.stdout, "database %s: running transactions of the leader are ended after %s, whatever lease.grace says, which is not read with --dsn\n",
			database, fence.DefaultGrace)
	}
}

// sayShadow says what an order does not do, if the resource is in shadow, or may be.
func (o *orderOptions) sayShadow(t terminal, database, resource string) {
	switch {
	case o.cfg == nil:
		fmt.Fprintf(t.stdout, "database %s: --dsn does not read the configuration of the proxies: if it has enforce: shadow for resource %s, where nothing is refused, its workers go on writing\n",
			database, table.Dash(resource))
	case o.cfg.Resources[resource].EnforceMode() == "shadow":
		fmt.Fprintf(t.stdout, "database %s: resource %s is in shadow (resources.<name>.enforce), where nothing is refused: its workers go on writing\n",
			database, table.Dash(resource))
	}
}

// sayEvicted says who has lost the lead by an order, if anybody has, and returns whether anybody has.
func sayEvicted(t terminal, database string, order *fencing.Order) bool {
	if order.Epoch == 0 || order.Worker == "" {
		return false
	}
	fmt.Fprintf(t.stdout, "database %s: worker %s does not lead resource %s any more: nobody holds epoch %d\n",
		database, table.Dash(order.Worker), table.Dash(order.Resource), order.Epoch)
	return true
}

// sayLost says what becomes of the writes of all workers that have lost the lead by an order.
func (o *orderOptions) sayLost(ctx context.Context, t terminal, db *fence.Database, database string, order *fencing.Order) {
	sayLost(ctx, t.stdout, db, database, order, func(worker string) { o.sayStale(t, database, order.Resource, worker) })
}

// sayLost calls stale for each worker that has lost the lead by an order, and says which of them led by the same token
// as the one that the order names. The order is given, so a failure to find that out is no error of the command.
func sayLost(ctx context.Context, out io.Writer, db *fence.Database, database string, order *fencing.Order, stale func(worker string)) {
	stale(order.Worker)
	asking, cancel := context.WithTimeout(ctx, sharersTimeout)
	defer cancel()
	others, err := operator.New(db).Sharers(asking, order)
	if err != nil {
		fmt.Fprintf(out, "database %s: it is not known whether other workers led resource %s by the same token, and do not lead it any more either, because the table fencepost.bearers cannot be read: %v\n",
			database, table.Dash(order.Resource), err)
	}
	for _, worker := range others {
		fmt.Fprintf(out, "database %s: worker %s led resource %s by the same token, and does not lead it any more either\n", database, table.Dash(worker), table.Dash(order.Resource))
		stale(worker)
	}
}

// sayStale says what becomes of the writes of a worker that has lost the lead, unless they fail.
func (o *orderOptions) sayStale(t terminal, database, resource, worker string) {
	if o.cfg != nil {
		sayDiscarded(t.stdout, *o.cfg, database, resource, worker)
		return
	}
	fmt.Fprintf(t.stdout, "database %s: --dsn does not read the configuration of the proxies: if it has on_stale: discard for resource %s, restart worker %s, whose writes are then discarded without an error\n",
		database, table.Dash(resource), table.Dash(worker))
}

func runPause(ctx context.Context, t terminal, args []string) error {
	var o orderOptions
	fs := flag.NewFlagSet("pause", flag.ContinueOnError)
	o.flags(fs, t)
	isNew := fs.Bool("new", false, "make the resource if no worker has used it yet")
	resource, err := parseOrder(t, fs, pauseAbout, "resource", args)
	if err != nil {
		return err
	}
	return o.give(ctx, t, func(ctx context.Context, t terminal, db *fence.Database, database string) error {
		o.sayGrace(t, database)
		order, err := operator.New(db).Pause(ctx, resource, o.orderer())
		if errors.Is(err, fence.ErrNoResource) && !*isNew {
			return fmt.Errorf("%w: no worker has used it yet (fencepost resource list shows those that were; --new makes it, and pauses it before its first worker)", err)
		}
		if errors.Is(err, fence.ErrNoResource) && fencing.ValidName(resource) {
			if _, err := db.Fence(ctx, resource); err != nil { // which makes it
				return err
			}
			fmt.Fprintf(t.stdout, "database %s: resource %s is new: no worker has connected for it yet\n", database, table.Dash(resource))
			order, err = operator.New(db).Pause(ctx, resource, o.orderer())
		}
		if err != nil {
			return err
		}
		o.sayShadow(t, database, resource)
		if order == nil {
			fmt.Fprintf(t.stdout, "database %s: resource %s is paused already: nothing changed\n", database, table.Dash(resource))
			return nil
		}
		if sayEvicted(t, database, order) {
			o.sayLost(ctx, t, db, database, order)
		}
		fmt.Fprintf(t.stdout, "database %s: resource %s is paused: nobody leads it until fencepost resume\n", database, table.Dash(resource))
		return nil
	})
}

func runResume(ctx context.Context, t terminal, args []string) error {
	var o orderOptions
	fs := flag.NewFlagSet("resume", flag.ContinueOnError)
	o.flags(fs, t)
	worker := fs.String("worker", "", "`worker` that may campaign again")
	resource, err := parseOrder(t, fs, resumeAbout, "resource", args)
	if err != nil {
		return err
	}
	return o.give(ctx, t, func(ctx context.Context, t terminal, db *fence.Database, database string) error {
		order, err := operator.New(db).Resume(ctx, resource, *worker, o.orderer())
		subject := "resource " + table.Dash(resource)
		was, is := "is not paused", "is not paused any more"
		if *worker != "" {
			subject = fmt.Sprintf("worker %s of resource %s", table.Dash(*worker), table.Dash(resource))
			was, is = "may campaign already", "may campaign again"
		}
		switch {
		case err != nil:
			return err
		case order == nil:
			fmt.Fprintf(t.stdout, "database %s: %s %s: nothing changed\n", database, subject, was)
		default:
			fmt.Fprintf(t.stdout, "database %s: %s %s\n", database, subject, is)
		}
		return nil
	})
}

// parseDays parses a duration such as 90d, 12h or 10m.
func parseDays(name, text string) (time.Duration, error) {
	var age config.Age
	if err := age.UnmarshalText([]byte(text)); err != nil || age == 0 {
		return 0, usagef("%s is %q: use a duration such as 90d, 12h or 10m", name, text)
	}
	return age.D(), nil
}

// sayDiscarded warns that the writes of a worker that has just lost the lead are discarded,
// if the configuration says so.
func sayDiscarded(out io.Writer, cfg config.Config, database, resource, worker string) {
	if cfg.Resources[resource].StaleMode() == "discard" {
		fmt.Fprintf(out, "database %s: resource %s has on_stale: discard: what worker %s writes on the connections that it has is discarded without an error, until it closes them: restart it\n",
			database, table.Dash(resource), table.Dash(worker))
	}
}
