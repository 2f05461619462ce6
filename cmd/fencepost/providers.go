package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing/store"
)

// electors are all election providers. A new one is a row here and a file of its own; if
// it has settings, they are a field of ElectionConfig.
var electors = []elector{postgresElector, consulElector}

// elector is one kind of lease service. Nothing else in this program knows which kinds
// there are.
type elector struct {
	name string // in election.provider
	// validate checks the elector's own settings. It is called only if the elector is
	// configured.
	validate func(c *Config, fault faultf)
	// open returns the lease service for the named proxy. It does not wait until the
	// service is reachable.
	open func(cfg Config, proxy string, log *zap.Logger) (leaseService, error)
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
	// BumpGeneration starts a new generation, and says what it did. st is the fence of
	// the named database; it is nil, and the name empty, if no database was given, which
	// an elector that is perDatabase is never asked for.
	BumpGeneration(ctx context.Context, name string, st *store.Store) (done string, err error)
	// Close is called when no provider is in use any more. It releases no lease.
	Close() error
}

// electorNames returns the words for election.provider.
func electorNames() []string {
	names := make([]string, len(electors))
	for i, e := range electors {
		names[i] = e.name
	}
	return names
}

// elector returns the configured elector. ok is false if there is none of that name.
func (c *Config) elector() (e elector, ok bool) {
	for _, e := range electors {
		if e.name == c.Election.Provider {
			return e, true
		}
	}
	return elector{}, false
}

// openElector opens the configured lease service.
func openElector(cfg Config, proxy string, log *zap.Logger) (leaseService, error) {
	e, ok := cfg.elector()
	if !ok {
		return nil, usagef("election.provider is %q, which is unknown", cfg.Election.Provider)
	}
	return e.open(cfg, proxy, log.Named(e.name))
}
