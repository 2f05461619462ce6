package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/fencepost/fencepost/cmd/fencepost/routes"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/fencing/store"
)

const explainAbout = `
Usage: fencepost explain [--dsn DSN] SQL
       fencepost explain [--dsn DSN] -        (reads standard input)

Shows for each statement of the text how Fencepost classifies it, and where the
check of its transaction goes. Whether a statement is classified as a read matters
only on connections that do not lead: a leader's transactions are all checked,
except proven reads of a resource that has reads: proven.

With --dsn it also shows whether the statement is proven harmless in that database,
which means that nothing it names can run code that is not built in. On PostgreSQL
14 and 15, connections that do not lead can run nothing else. Any role that can
connect is sufficient.`

func runExplain(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("explain", flag.ContinueOnError)
	dsn := fs.String("dsn", "", "`DSN` of a database whose catalog is used")
	if err := parseFlags(t, fs, explainAbout, args, 1); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usagef("no SQL text given: pass it as an argument, or - to read standard input")
	}
	sql := fs.Arg(0)
	if sql == "-" {
		text, err := readUntil(ctx, func() ([]byte, error) { return io.ReadAll(t.stdin) })
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		sql = string(text)
	}
	var catalog *fencing.Catalog
	if *dsn != "" {
		var err error
		if catalog, err = readCatalog(ctx, *dsn); err != nil {
			return err
		}
	}
	statements := sqltext.ExplainIn(sql, catalog)
	if len(statements) == 0 {
		fmt.Fprintln(t.stdout, "no statement: nothing is checked")
	}
	for i, s := range statements {
		if i > 0 {
			fmt.Fprintln(t.stdout)
		}
		read := "write"
		if s.Read {
			read = "read"
		}
		fmt.Fprintf(t.stdout, "%s\n  kind   %s\n  taken  for a %s", strings.TrimSpace(s.SQL), s.Kind, read)
		if s.Reason != "" {
			fmt.Fprintf(t.stdout, ": %s", s.Reason)
		}
		fmt.Fprintf(t.stdout, "\n  check  %s\n", s.Check)
		switch {
		case catalog == nil:
		case s.Proven:
			fmt.Fprintln(t.stdout, "  proven harmless")
		default:
			fmt.Fprintf(t.stdout, "  proven no: %s\n", s.Unproven)
		}
	}
	return nil
}

// readCatalog reads the catalog of the database that the DSN names.
func readCatalog(ctx context.Context, dsn string) (*fencing.Catalog, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return store.ReadCatalog(ctx, conn)
}

const explainRouteAbout = `
Usage: fencepost explain-route --user USER --client ADDRESS [--database DATABASE]
           [--application-name NAME] [--config FILE]

Shows which of the routes in the configuration a connection would get that names no
resource itself, what it would join, and why the other routes do not match. It reads
the configuration only, and connects to nothing. --client local stands for a client
on a Unix socket.`

func runExplainRoute(_ context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("explain-route", flag.ContinueOnError)
	path := fs.String("config", t.getenv("FENCEPOST_CONFIG"), "configuration `file`")
	var c routes.Connection
	fs.StringVar(&c.User, "user", "", "the `user` who connects")
	fs.StringVar(&c.Database, "database", "", "the `database`; by default the one with the user's name, as in Postgres")
	fs.StringVar(&c.ApplicationName, "application-name", "", "the application_`name` that the client sends; by default none")
	client := fs.String("client", "", "the client's IP `address`, or local")
	if err := parseFlags(t, fs, explainRouteAbout, args, 0); err != nil {
		return err
	}
	if c.User == "" || *client == "" {
		return usagef("--user and --client are required")
	}
	c.Database = cmp.Or(c.Database, c.User)
	if *client != "local" {
		address, err := netip.ParseAddr(*client)
		if err != nil {
			return usagef("--client is %q: give an IP address, or local for a Unix socket", *client)
		}
		c.Client = address.Unmap()
	}
	cfg, err := loadConfig(*path, t.environ())
	if err != nil {
		return err
	}
	return routes.Explanation{
		Connection: c, Routes: cfg.Routes.List(), Identity: cfg.Worker.Identity, Unfenced: cfg.UnfencedFor(c.User),
		Users: func(resource string) []string { return cfg.Resources[resource].Users },
	}.Write(t.stdout)
}
