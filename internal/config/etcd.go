package config

import (
	"strings"

	"github.com/fencepost/fencepost/internal/files"
)

// Etcd configures the provider "etcd".
type Etcd struct {
	Endpoints Addresses `yaml:"endpoints"`
	Scheme    string    `yaml:"scheme"`
	Prefix    string    `yaml:"prefix"`
	files.Login
	files.TLSClient
}

var defaultEtcd = Etcd{Endpoints: Addresses{"127.0.0.1:2379"}, Scheme: "http", Prefix: "fencepost"}

// Validate checks the settings of the provider "etcd".
func (c *Etcd) Validate(fault Fault) {
	checkMembers(fault, "election.etcd.endpoints", c.Endpoints, "127.0.0.1:2379", "election.etcd.scheme")
	checkWord(fault, "election.etcd.scheme", c.Scheme, "http", "https")
	checkPrefix(fault, "election.etcd.prefix", c.Prefix)
	checkLogin(fault, "election.etcd", c.Login, true)
	checkTLSClient(fault, "election.etcd", c.TLSClient, "scheme", c.Scheme, "http", "https")
}

// checkPrefix checks the prefix of a lease service's keys.
func checkPrefix(fault Fault, where, prefix string) {
	if prefix == "" || strings.HasPrefix(prefix, "/") || strings.HasSuffix(prefix, "/") {
		fault("%s is %q: use a key prefix that neither starts nor ends with a slash, e.g. fencepost", where, prefix)
	}
}
