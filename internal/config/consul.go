package config

import "github.com/fencepost/fencepost/internal/files"

// Consul configures the provider "consul".
type Consul struct {
	Address string `yaml:"address"`
	Scheme  string `yaml:"scheme"`
	Prefix  string `yaml:"prefix"`
	Token   string `yaml:"token"`
	files.TLSClient
}

var defaultConsul = Consul{Address: "127.0.0.1:8500", Scheme: "http", Prefix: "fencepost"}

// Validate checks the settings of the provider "consul".
func (c *Consul) Validate(fault Fault) {
	checkAddress(fault, "election.consul.address", c.Address)
	checkWord(fault, "election.consul.scheme", c.Scheme, "http", "https")
	checkPrefix(fault, "election.consul.prefix", c.Prefix)
	checkTLSClient(fault, "election.consul", c.TLSClient, "scheme", c.Scheme, "http", "https")
}
