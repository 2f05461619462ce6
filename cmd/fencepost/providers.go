package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing/store"
)

// electors are all election providers. A new one is a row here and a file of its own; if
// it has settings, they are a field of config.Election.
var electors = []elector{postgresElector, consulElector}

// elector is one kind of lease service. Nothing else in this program knows which kinds
// there are.
type elector struct {
	config.Provider
	// open returns the lease service for the named proxy. It does not wait until the
	// service is reachable.
	open func(cfg config.Config, proxy string, log *zap.Logger) (leaseService, error)
	// perDatabase: the service has one generation per database, and not one for all.
	perDatabase bool
}

// leaseService is the configured lease service of a running command.
type leaseService interface {
	// Database returns the provider of one database's leases. st is the database's fence.
	Database(name string, st *store.Store) (election.Provider, error)
	// Healthy returns why the service cannot be used at the moment, or nil if it can or
	// if its problems show elsewhere.
	Healthy() error
	// Check tries what an election needs of the service, with these TTLs. It returns an
	// *election.DeniedError if the service denies it, and nil if the service needs no such
	// test.
	Check(ctx context.Context, ttls []time.Duration) error
	// BumpGeneration starts a new generation, and says what it did. st is the fence of
	// the named database; it is nil, and the name empty, if no database was given, which
	// an elector that is perDatabase is never asked for.
	BumpGeneration(ctx context.Context, name string, st *store.Store) (done string, err error)
	// Close is called when no provider is in use any more. It releases no lease.
	Close() error
}

// loadConfig reads the configuration. Its errors are usage errors.
func loadConfig(path string, environ []string) (config.Config, error) {
	cfg, err := config.Load(path, environ, providers())
	if err != nil {
		return cfg, usageError{err.Error()}
	}
	return cfg, nil
}

// providers returns the election providers that a configuration may name.
func providers() []config.Provider {
	all := make([]config.Provider, len(electors))
	for i, e := range electors {
		all[i] = e.Provider
	}
	return all
}

// electorOf returns the configured elector. ok is false if there is none of that name.
func electorOf(cfg config.Config) (e elector, ok bool) {
	for _, e := range electors {
		if e.Name == cfg.Election.Provider {
			return e, true
		}
	}
	return elector{}, false
}

// openElector opens the configured lease service.
func openElector(cfg config.Config, proxy string, log *zap.Logger) (leaseService, error) {
	e, ok := electorOf(cfg)
	if !ok {
		return nil, usagef("election.provider is %q, which is unknown", cfg.Election.Provider)
	}
	return e.open(cfg, proxy, log.Named(e.Name))
}
