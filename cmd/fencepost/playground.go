package main

import (
	"context"
	"errors"
	"flag"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/playground"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/anyone"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
)

const playgroundAbout = `
Usage: fencepost playground [--listen ADDRESS] [--postgres DIRECTORY]

Starts a throwaway PostgreSQL, and serves a web page on which workers compete for
a lease and are frozen, killed and cut off at your choice, and on which two leaders
of a partitioned cluster write. Ctrl-C, or the end of the terminal, ends it and discards
everything. Needs PostgreSQL's server programs.

The page can start and end processes of the playground, and nothing else. Only
programs on this machine reach it, unless --listen names another address.`

func runPlayground(ctx context.Context, t terminal, args []string) error {
	var o playground.Options
	fs := flag.NewFlagSet("playground", flag.ContinueOnError)
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:6480", "`address` of the web page")
	fs.StringVar(&o.PostgresBin, "postgres", "", "`directory` of initdb and postgres; searched for by default")
	if err := parseFlags(t, fs, playgroundAbout, args, 0); err != nil {
		return err
	}
	if err := refuseUnfenced(t); err != nil {
		return err
	}
	// A terminal that closes sends SIGHUP, which the proxies in this process take as an order to reload.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	o.Out = t.stdout
	o.StartProxy = func(p playground.ProxyOptions) (playground.Proxy, error) { return startPlaygroundProxy(t, p) }
	return playground.Run(ctx, o)
}

func runPlaygroundWorker(ctx context.Context, t terminal, args []string) error {
	var o playground.WorkerOptions
	fs := flag.NewFlagSet("playground-worker", flag.ContinueOnError)
	fs.StringVar(&o.Name, "name", "worker", "name of the worker")
	fs.StringVar(&o.DSN, "dsn", "", "`DSN` through Fencepost")
	fs.StringVar(&o.Resource, "resource", "", "`resource` that it writes")
	fs.DurationVar(&o.Think, "think", 300*time.Millisecond, "how long it thinks between reading and writing")
	fs.DurationVar(&o.Rest, "rest", 500*time.Millisecond, "how long it rests after a row")
	fs.BoolVar(&o.Insist, "insist", false, "write whatever Fencepost says, because another elector has elected it")
	fs.DurationVar(&o.Again, "again", 0, "with --insist: how long it only observes after it was superseded")
	if err := parseFlags(t, fs, "Usage: fencepost playground-worker --dsn DSN --resource RESOURCE\n\nOne worker of the playground.", args, 0); err != nil {
		return err
	}
	if o.DSN == "" || o.Resource == "" {
		return usagef("--dsn and --resource are required")
	}
	o.Out = t.stdout
	return playground.RunWorker(ctx, o)
}

// startPlaygroundProxy starts a proxy in this process, as serve does.
func startPlaygroundProxy(t terminal, o playground.ProxyOptions) (playground.Proxy, error) {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Address = config.Addresses{"127.0.0.1:0"}, ""
	cfg.Upstream.Address = config.Addresses{config.Address(o.Upstream)}
	cfg.Control.Password, cfg.Proxy.ID = o.Password, o.Name
	cfg.Lease.TTL, cfg.Lease.WorkerTimeout, cfg.Lease.Grace = config.Duration(o.TTL), config.Duration(o.WorkerTimeout), config.Duration(o.Grace)
	cfg.Lease.MaxTimeoutFactor = 1 // a scene can be repeated with the same times
	cfg.DrainTimeout, cfg.Limits.ResourcesPerUser = config.Duration(time.Second), 0
	if err := cfg.Validate(providers()); err != nil {
		return playground.Proxy{}, err
	}
	open := opener(serveElector)
	if o.Anyone {
		open = func(config.Config, string, *zap.Logger) (electors.Service, error) {
			return anyoneService{}, nil
		}
		cfg.Election.Provider = anyone.Source // for the log; no configuration can say so
	}
	logs, err := newLogger(cfg.Log, o.Log, o.Log)
	if err != nil {
		return playground.Proxy{}, err
	}
	s, err := newServing(cfg, logs, open)
	if err != nil {
		return playground.Proxy{}, err
	}
	s.settings.Load = func() (config.Config, error) { return cfg, nil }
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	return playground.Proxy{
		Address: s.listeners[0].Addr().String(),
		Stop:    sync.OnceValue(func() error { cancel(); return <-ended }),
	}, nil
}

// anyoneService is the lease service that awards to anyone. It is not among electors.All, so that no
// configuration can name it.
type anyoneService struct{}

func (anyoneService) Database(_ string, st *store.Store) (election.Provider, error) {
	return anyone.New(st.Pool()), nil
}

func (anyoneService) Healthy() error                               { return nil }
func (anyoneService) Check(context.Context, []time.Duration) error { return nil }
func (anyoneService) Close() error                                 { return nil }

func (anyoneService) Position(context.Context, *pgx.Conn, []time.Duration) (election.Position, error) {
	return election.Position{}, errors.New("whoever awards to anyone counts nothing")
}

func (anyoneService) BumpGeneration(context.Context, string, *store.Store) (string, error) {
	return "", errors.New("whoever awards to anyone has one generation")
}
