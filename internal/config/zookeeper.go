package config

import (
	"strconv"
	"strings"

	"github.com/fencepost/fencepost/internal/files"
)

// ZooKeeper configures the provider "zookeeper".
type ZooKeeper struct {
	Servers Addresses `yaml:"servers"`
	TLS     bool      `yaml:"tls"`
	Prefix  string    `yaml:"prefix"`
	files.Login
	files.TLSClient
}

var defaultZooKeeper = ZooKeeper{Servers: Addresses{"127.0.0.1:2181"}, Prefix: "fencepost"}

// Validate checks the settings of the provider "zookeeper".
func (c *ZooKeeper) Validate(fault Fault) {
	checkMembers(fault, "election.zookeeper.servers", c.Servers, "127.0.0.1:2181", "election.zookeeper.tls")
	checkPrefix(fault, "election.zookeeper.prefix", c.Prefix)
	checkPath(fault, c.Prefix)
	checkLogin(fault, "election.zookeeper", c.Login, true)
	if strings.Contains(c.User, ":") {
		fault("election.zookeeper.user is %q: ZooKeeper ends the name of a user at the first colon", c.User)
	}
	checkTLSClient(fault, "election.zookeeper", c.TLSClient, "tls", strconv.FormatBool(c.TLS), "false", "true")
}

// checkPath checks that a prefix is a path of znodes.
func checkPath(fault Fault, prefix string) {
	for _, part := range strings.Split(prefix, "/") {
		bad := func(r rune) bool { return r <= ' ' || r > '~' }
		if part == "." || part == ".." || part == "zookeeper" || strings.ContainsFunc(part, bad) || part == "" && strings.Contains(prefix, "//") {
			fault("election.zookeeper.prefix is %q: use the path of a znode without the slash at its beginning, of printable ASCII, outside /zookeeper, e.g. fencepost", prefix)
			return
		}
	}
}
