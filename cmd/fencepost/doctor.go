package main

import (
	"context"
	"errors"
	"flag"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/doctor"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/service/hosts"
)

const doctorAbout = `
Usage: fencepost doctor [--config FILE] [--database NAME ...] [--dsn DSN] [--json]

Says what is wrong or risky in an installation: its configuration, the settings and
roles of Postgres, ways around the proxy, the schema fencepost, the lease service.
docs/doctor.md lists what it may find. It changes nothing; with Consul it creates
sessions of the configured TTLs, and ends them.

By default it connects as the control role, to the databases that --database names, to
control.probe_database, or to all that have the schema. With --dsn it looks at that
database, usually as a superuser, who may read pg_hba.conf; without --config, it then
looks at nothing but Postgres.

Exit codes: 0 no findings, 1 findings, 2 something could not be looked at.`

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	config, dsn string
	databases   roleList
	json        bool
}

func runDoctor(ctx context.Context, t terminal, args []string) (err error) {
	var o doctorOptions
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	fs.StringVar(&o.config, "config", t.getenv("FENCEPOST_CONFIG"), "configuration `file`, as for serve")
	fs.Var(&o.databases, "database", "`name` of a database to look at as the control role; may be given several times")
	fs.StringVar(&o.dsn, "dsn", "", "`DSN` of the database to look at, usually as a superuser")
	fs.BoolVar(&o.json, "json", false, "print JSON")
	if err := parseFlags(t, fs, doctorAbout, args, 0); err != nil {
		return err
	}
	if o.dsn != "" && len(o.databases) > 0 {
		return usagef("--dsn and --database are mutually exclusive")
	}
	sources := doctor.Sources{Databases: o.databases}
	if o.dsn != "" {
		if _, err := parseDSN(o.dsn); err != nil {
			return err
		}
		sources.Operator = func(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, o.dsn) }
	}
	if o.dsn == "" || o.config != "" {
		leases, err := o.configure(ctx, t, &sources)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, leases.Close()) }()
	}
	report := doctor.NewReport(doctor.Look(ctx, sources))
	write := report.WriteText
	if o.json {
		write = report.WriteJSON
	}
	return errors.Join(write(t.stdout), report.Err())
}

// configure reads the configuration into the sources. The lease service must be closed.
func (o doctorOptions) configure(ctx context.Context, t terminal, sources *doctor.Sources) (electors.Service, error) {
	cfg, err := loadConfig(o.config, t.environ())
	if err != nil {
		return nil, err
	}
	servers, err := hosts.Look(ctx, cfg)
	if err != nil {
		return nil, usageError{err.Error()}
	}
	sources.Hosts = servers.Statuses()
	sources.Control = hosts.Store(cfg, servers, "")
	leases, err := kinds.Open(cfg, "doctor", zap.NewNop())
	if err != nil {
		return nil, usageError{err.Error()}
	}
	sources.Settings = &cfg
	sources.Position = func(ctx context.Context, conn *pgx.Conn) (elector.Position, error) {
		return leases.Position(ctx, conn, cfg.TTLs())
	}
	if adviser, ok := leases.(electors.Adviser); ok {
		sources.Risks = adviser.Risks
	}
	sources.Leases = func(ctx context.Context) error { return leases.Check(ctx, cfg.TTLs()) }
	return leases, nil
}
