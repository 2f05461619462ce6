package config

import (
	"net"
	"strings"

	"github.com/fencepost/fencepost/internal/files"
)

// Redis configures the provider "redis".
type Redis struct {
	Address  string `yaml:"address"` // of the master
	Scheme   string `yaml:"scheme"`
	Prefix   string `yaml:"prefix"`
	Database int    `yaml:"database"` // the number of Redis's database
	files.Login
	files.TLSClient
}

var defaultRedis = Redis{Address: "127.0.0.1:6379", Scheme: "redis", Prefix: "fencepost"}

// Validate checks the settings of the provider "redis".
func (c *Redis) Validate(fault Fault) {
	c.checkAddress(fault)
	checkWord(fault, "election.redis.scheme", c.Scheme, "redis", "rediss")
	checkPrefix(fault, "election.redis.prefix", c.Prefix)
	if strings.ContainsAny(c.Prefix, " {}") {
		fault("election.redis.prefix is %q: use a prefix without spaces and braces, e.g. fencepost", c.Prefix)
	}
	if c.Database < 0 {
		fault("election.redis.database is %d: use the number of a database of Redis, e.g. 0", c.Database)
	}
	checkLogin(fault, "election.redis", c.Login, false)
	checkTLSClient(fault, "election.redis", c.TLSClient, "scheme", c.Scheme, "redis", "rediss")
}

// checkAddress checks that there is one address. Whoever has several has a Cluster, or Sentinels.
func (c *Redis) checkAddress(fault Fault) {
	const where = "election.redis.address"
	if strings.Contains(c.Address, "://") {
		fault("%s is %q: use host:port, and set election.redis.scheme, user, password and database", where, c.Address)
		return
	}
	if strings.Contains(c.Address, ",") {
		fault("%s is %q: use one host:port, that of the master. Fencepost does not support Redis Cluster, and asks no Sentinel", where, c.Address)
		return
	}
	if host, _, err := net.SplitHostPort(c.Address); err == nil && host == "" {
		fault("%s is %q: use host:port, e.g. 127.0.0.1:6379", where, c.Address)
		return
	}
	checkAddress(fault, where, c.Address)
}
