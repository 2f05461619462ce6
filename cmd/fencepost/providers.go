package main

import (
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
)

// kinds are all election providers. Tests add one of their own.
var kinds = electors.All()

// loadConfig reads the configuration. Its errors are usage errors.
func loadConfig(path string, environ []string) (config.Config, error) {
	cfg, err := config.Load(path, environ, kinds.Providers())
	if err != nil {
		return cfg, usageError{err.Error()}
	}
	return cfg, nil
}
