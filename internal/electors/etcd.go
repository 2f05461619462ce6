package electors

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/config"
)

// etcdElector keeps the leases of all databases in one etcd cluster.
var etcdElector = Elector{
	Provider: config.Provider{
		Name:     "etcd",
		Validate: func(c *config.Config, fault config.Fault) { c.Election.Etcd.Validate(fault) },
	},
	Open: openEtcd,
}

// openEtcd prepares the connection to etcd under the name of a proxy, and starts to watch it.
func openEtcd(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	c := cfg.Election.Etcd
	endpoints := make([]string, len(c.Endpoints))
	for i, e := range c.Endpoints {
		endpoints[i] = string(e)
	}
	client, err := etcd.New(etcd.Config{
		Endpoints: endpoints, TLS: c.Scheme == "https", Login: c.Login, Prefix: c.Prefix,
		TLSClient: c.TLSClient,
		Proxy:     proxy, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return network{
		client:   client,
		database: func(name string) elector.Provider { return client.Database(name) },
		name:     "etcd", title: "etcd", setting: "election.etcd.endpoints", prefix: c.Prefix,
	}, nil
}
