package electors

import (
	"context"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/redis"
	"github.com/fencepost/fencepost/internal/config"
)

// redisElector keeps the leases of all databases in one Redis.
var redisElector = Elector{
	Provider: config.Provider{
		Name:     "redis",
		Validate: func(c *config.Config, fault config.Fault) { c.Election.Redis.Validate(fault) },
	},
	Open: openRedis,
}

// redisService is a network that says how it keeps its leases.
type redisService struct {
	network
	client *redis.Client
}

// Risks implements Adviser.
func (s redisService) Risks(ctx context.Context) ([]elector.Risk, error) { return s.client.Risks(ctx) }

// openRedis prepares the connection to Redis under the name of a proxy, and starts to watch it.
func openRedis(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	c := cfg.Election.Redis
	client, err := redis.New(redis.Config{
		Address: c.Address, TLS: c.Scheme == "rediss", Login: c.Login,
		Database: c.Database, Prefix: c.Prefix,
		TLSClient: c.TLSClient,
		Proxy:     proxy, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	log.Warn("Redis is a best-effort lease service: a failover, a restart without persistence or a step of its clock can end a lease early. Who may write does not depend on it")
	return redisService{network{
		client:   client,
		database: func(name string) elector.Provider { return client.Database(name) },
		name:     "redis", title: "Redis", setting: "election.redis.address", prefix: c.Prefix,
	}, client}, nil
}
