package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Etcd configures the provider "etcd".
type Etcd struct {
	Endpoints    Addresses `yaml:"endpoints"`
	Scheme       string    `yaml:"scheme"`
	Prefix       string    `yaml:"prefix"`
	User         string    `yaml:"user"`
	Password     string    `yaml:"password"`
	PasswordFile string    `yaml:"password_file"`
	CAFile       string    `yaml:"ca_file"`
	CertFile     string    `yaml:"cert_file"`
	KeyFile      string    `yaml:"key_file"`
	ServerName   string    `yaml:"server_name"`
}

var defaultEtcd = Etcd{Endpoints: Addresses{"127.0.0.1:2379"}, Scheme: "http", Prefix: "fencepost"}

// Validate checks the settings of the provider "etcd".
func (c *Etcd) Validate(fault Fault) {
	if len(c.Endpoints) == 0 {
		fault("election.etcd.endpoints is empty: name at least one member, e.g. 127.0.0.1:2379")
	}
	for i, e := range c.Endpoints {
		checkEndpoint(fault, string(e))
		if slices.Contains(c.Endpoints[:i], e) {
			fault("election.etcd.endpoints has %q twice: name each member once", e)
		}
	}
	checkWord(fault, "election.etcd.scheme", c.Scheme, "http", "https")
	checkPrefix(fault, "election.etcd.prefix", c.Prefix)
	password := c.Password != "" || c.PasswordFile != ""
	switch {
	case c.Password != "" && c.PasswordFile != "":
		fault("election.etcd.password and password_file are both set: set one of them")
	case c.User == "" && password:
		fault("election.etcd has a password, but no user: set user too, or remove the password")
	case c.User != "" && !password:
		fault("election.etcd.user is set, but no password: set password or password_file too (a client certificate names its user itself)")
	}
	checkKeyPair(fault, "election.etcd", c.CertFile, c.KeyFile)
	if c.Scheme == "http" && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		fault("election.etcd has TLS settings, but scheme is http: set scheme: https, or remove them")
	}
}

// checkEndpoint checks the address of a member.
func checkEndpoint(fault Fault, e string) {
	if strings.Contains(e, "://") {
		fault("election.etcd.endpoints has %q: use host:port, and set election.etcd.scheme", e)
		return
	}
	host, port, err := net.SplitHostPort(e)
	if err != nil || host == "" || strings.ContainsAny(host, "/ ") {
		fault("election.etcd.endpoints is %q: use host:port, e.g. etcd-1:2379", e)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		fault("election.etcd.endpoints is %q: the port must be a number from 1 to 65535", e)
	}
}

// checkPrefix checks the prefix of a lease service's keys.
func checkPrefix(fault Fault, where, prefix string) {
	if prefix == "" || strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") {
		fault("%s is %q: use a key prefix that neither starts nor ends with a slash, e.g. fencepost", where, prefix)
	}
}
