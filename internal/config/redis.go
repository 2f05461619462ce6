package config

import (
	"net"
	"strings"
)

// Redis configures the provider "redis".
type Redis struct {
	Address      string `yaml:"address"` // of the master
	Scheme       string `yaml:"scheme"`
	Prefix       string `yaml:"prefix"`
	Database     int    `yaml:"database"` // the number of Redis's database
	User         string `yaml:"user"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"password_file"`
	CAFile       string `yaml:"ca_file"`
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
	ServerName   string `yaml:"server_name"`
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
	password := c.Password != "" || c.PasswordFile != ""
	switch {
	case c.Password != "" && c.PasswordFile != "":
		fault("election.redis.password and password_file are both set: set one of them")
	case c.User != "" && !password:
		fault("election.redis.user is set, but no password: set password or password_file too")
	}
	checkKeyPair(fault, "election.redis", c.CertFile, c.KeyFile)
	if c.Scheme == "redis" && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		fault("election.redis has TLS settings, but scheme is redis: set scheme: rediss, or remove them")
	}
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
