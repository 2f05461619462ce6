package main

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
)

// kinds are all election providers. Tests add one of their own.
var kinds = electors.All()

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
	all := make([]config.Provider, len(kinds))
	for i, e := range kinds {
		all[i] = e.Provider
	}
	return all
}

// electorOf returns the configured elector. ok is false if there is none of that name.
func electorOf(cfg config.Config) (e electors.Elector, ok bool) {
	for _, e := range kinds {
		if e.Name == cfg.Election.Provider {
			return e, true
		}
	}
	return electors.Elector{}, false
}

// openElector opens the configured lease service for a command, or for a proxy.
func openElector(cfg config.Config, proxy string, log *zap.Logger) (electors.Service, error) {
	e, ok := electorOf(cfg)
	if !ok {
		return nil, usagef("election.provider is %q, which is unknown", cfg.Election.Provider)
	}
	return e.Open(cfg, proxy, log.Named(e.Name))
}

// serveElector opens the configured lease service for a proxy that serves.
func serveElector(cfg config.Config, proxy string, log *zap.Logger) (electors.Service, error) {
	if e, ok := electorOf(cfg); ok && e.Serve != nil {
		return e.Serve(cfg, proxy, log.Named(e.Name))
	}
	return openElector(cfg, proxy, log)
}
