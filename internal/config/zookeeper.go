package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// ZooKeeper configures the provider "zookeeper".
type ZooKeeper struct {
	Servers      Addresses `yaml:"servers"`
	TLS          bool      `yaml:"tls"`
	Prefix       string    `yaml:"prefix"`
	User         string    `yaml:"user"`
	Password     string    `yaml:"password"`
	PasswordFile string    `yaml:"password_file"`
	CAFile       string    `yaml:"ca_file"`
	CertFile     string    `yaml:"cert_file"`
	KeyFile      string    `yaml:"key_file"`
	ServerName   string    `yaml:"server_name"`
}

var defaultZooKeeper = ZooKeeper{Servers: Addresses{"127.0.0.1:2181"}, Prefix: "fencepost"}

// Validate checks the settings of the provider "zookeeper".
func (c *ZooKeeper) Validate(fault Fault) {
	if len(c.Servers) == 0 {
		fault("election.zookeeper.servers is empty: name at least one server, e.g. 127.0.0.1:2181")
	}
	for i, s := range c.Servers {
		checkServer(fault, string(s))
		if slices.Contains(c.Servers[:i], s) {
			fault("election.zookeeper.servers has %q twice: name each server once", s)
		}
	}
	checkPrefix(fault, "election.zookeeper.prefix", c.Prefix)
	checkPath(fault, c.Prefix)
	password := c.Password != "" || c.PasswordFile != ""
	switch {
	case c.Password != "" && c.PasswordFile != "":
		fault("election.zookeeper.password and password_file are both set: set one of them")
	case c.User == "" && password:
		fault("election.zookeeper has a password, but no user: set user too, or remove the password")
	case c.User != "" && !password:
		fault("election.zookeeper.user is set, but no password: set password or password_file too (a client certificate names its user itself)")
	case strings.Contains(c.User, ":"):
		fault("election.zookeeper.user is %q: ZooKeeper ends the name of a user at the first colon", c.User)
	}
	checkKeyPair(fault, "election.zookeeper", c.CertFile, c.KeyFile)
	if !c.TLS && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		fault("election.zookeeper has settings for TLS, but tls is false: set tls: true, or remove them")
	}
}

// checkServer checks the address of a server.
func checkServer(fault Fault, s string) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ") {
		fault("election.zookeeper.servers is %q: use host:port, e.g. zookeeper-1:2181, and name several servers as a list", s)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		fault("election.zookeeper.servers is %q: the port must be a number from 1 to 65535", s)
	}
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
