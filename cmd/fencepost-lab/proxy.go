package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/playground"
	"github.com/fencepost/fencepost/election/anyone"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/service"
)

// startProxy starts a proxy in this process, as fencepost serve does.
func startProxy(o playground.ProxyOptions) (playground.Proxy, error) {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Address = config.Addresses{"127.0.0.1:0"}, ""
	cfg.Upstream.Address = config.Addresses{config.Address(o.Upstream)}
	cfg.Control.Password, cfg.Proxy.ID = o.Password, o.Name
	cfg.Lease.TTL, cfg.Lease.WorkerTimeout, cfg.Lease.Grace = config.Duration(o.TTL), config.Duration(o.WorkerTimeout), config.Duration(o.Grace)
	cfg.Lease.MaxTimeoutFactor = 1 // a scene can be repeated with the same times
	cfg.DrainTimeout, cfg.Limits.ResourcesPerUser = config.Duration(time.Second), 0
	all := electors.All()
	if err := cfg.Validate(all.Providers()); err != nil {
		return playground.Proxy{}, err
	}
	open := all.Serve
	if o.Anyone {
		open = func(config.Config, string, *zap.Logger) (electors.Service, error) { return anyoneService{}, nil }
		cfg.Election.Provider = anyone.Source // for the log; no configuration can say so
	}
	logs, err := service.NewLoggers(cfg.Log, o.Log, o.Log)
	if err != nil {
		return playground.Proxy{}, err
	}
	s, err := service.New(cfg, service.Options{Version: "lab", Logs: logs, Open: open, Load: func() (config.Config, error) { return cfg, nil }})
	if err != nil {
		return playground.Proxy{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return playground.Proxy{
		Address: s.Addresses()[0].String(),
		Stop:    sync.OnceValue(func() error { cancel(); return <-ended }),
	}, nil
}

// anyoneService is the lease service that awards to anyone. It is not among electors.All, so that no
// configuration can name it.
type anyoneService struct{}

func (anyoneService) Database(_ string, db *fence.Database) (elector.Provider, error) {
	return anyone.New(db.Pool()), nil
}

func (anyoneService) Healthy() error                               { return nil }
func (anyoneService) Check(context.Context, []time.Duration) error { return nil }
func (anyoneService) Close() error                                 { return nil }

func (anyoneService) Position(context.Context, *pgx.Conn, []time.Duration) (elector.Position, error) {
	return elector.Position{}, errors.New("whoever awards to anyone counts nothing")
}

func (anyoneService) BumpGeneration(context.Context, string, *fence.Database) (string, error) {
	return "", errors.New("whoever awards to anyone has one generation")
}
