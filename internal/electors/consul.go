package electors

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/consul"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/config"
)

// consulElector keeps the leases of all databases in one Consul.
var consulElector = Elector{
	Provider: config.Provider{
		Name:     "consul",
		Validate: func(c *config.Config, fault config.Fault) { c.Election.Consul.Validate(fault) },
	},
	Open: openConsul,
}

// openConsul connects to Consul under the name of a proxy, and starts to watch it.
func openConsul(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	c := cfg.Election.Consul
	client, err := consul.New(consul.Config{
		Address: c.Address, Scheme: c.Scheme, Token: c.Token, Prefix: c.Prefix,
		TLSClient: c.TLSClient,
		Proxy:     proxy, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return network{
		client:   client,
		database: func(name string) elector.Provider { return client.Database(name) },
		name:     "consul", title: "Consul", setting: "election.consul.address", prefix: c.Prefix,
	}, nil
}
