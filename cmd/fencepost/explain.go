package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/catalog"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/routes"
)

const explainAbout = `
Usage: fencepost explain [--dsn DSN] SQL
       fencepost explain [--dsn DSN] -        (reads standard input)

Shows what becomes of each statement of the text: in the session of a worker that
leads, and in a session that may only read (of a worker that does not lead, or of a
connection without a resource under "unfenced: read-only"). On PostgreSQL 15, such a
session reads only what the catalog proves harmless, which means that nothing that the
statement names can run code that is not built in. With --dsn, it also shows whether
the catalog of that database proves it. Any role that can connect is sufficient.`

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
	statements := sqltext.Explain(sql, catalog)
	if len(statements) == 0 {
		fmt.Fprintln(t.stdout, "no statement")
	}
	for i, s := range statements {
		if i > 0 {
			fmt.Fprintln(t.stdout)
		}
		read := "write"
		if s.Read {
			read = "read"
		}
		fmt.Fprintf(t.stdout, "%s\n  kind    %s\n  taken   for a %s", strings.TrimSpace(s.SQL), s.Kind, read)
		if s.Reason != "" {
			fmt.Fprintf(t.stdout, ": %s", s.Reason)
		}
		fmt.Fprintf(t.stdout, "\n  leader  %s\n  reader  %s\n", s.Leader, s.Reader)
		if s.On15 != s.Reader {
			fmt.Fprintf(t.stdout, "  on 15   %s\n", s.On15)
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
	return catalog.Read(ctx, conn)
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
