package electors

import (
	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/config"
)

// zookeeperElector keeps the leases of all databases in one ZooKeeper ensemble.
var zookeeperElector = Elector{
	Provider: config.Provider{
		Name:     "zookeeper",
		Validate: func(c *config.Config, fault config.Fault) { c.Election.ZooKeeper.Validate(fault) },
	},
	Open: openZooKeeper,
}

// openZooKeeper prepares the connection to ZooKeeper under the name of a proxy, and starts to watch
// it.
func openZooKeeper(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	c := cfg.Election.ZooKeeper
	servers := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		servers[i] = string(s)
	}
	client, err := zookeeper.New(zookeeper.Config{
		Servers: servers, TLS: c.TLS, Login: c.Login, Prefix: c.Prefix,
		TLSClient: c.TLSClient,
		Proxy:     proxy, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return network{
		client:   client,
		database: func(name string) elector.Provider { return client.Database(name) },
		name:     "zookeeper", title: "ZooKeeper", setting: "election.zookeeper.servers", prefix: c.Prefix,
	}, nil
}
