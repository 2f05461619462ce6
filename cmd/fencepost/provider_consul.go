package main

import (
	"context"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/consul"
	"github.com/fencepost/fencepost/fencing/store"
)

// consulElector keeps the leases of all databases in one Consul.
var consulElector = elector{
	name:     "consul",
	validate: func(c *Config, fault faultf) { c.Election.Consul.validate(fault) },
	open:     openConsul,
}

// ConsulConfig configures the provider "consul".
type ConsulConfig struct {
	Address    string `yaml:"address"`
	Scheme     string `yaml:"scheme"`
	Prefix     string `yaml:"prefix"`
	Token      string `yaml:"token"`
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"`
}

var defaultConsul = ConsulConfig{Address: "127.0.0.1:8500", Scheme: "http", Prefix: "fencepost"}

func (c *ConsulConfig) validate(fault faultf) {
	checkAddress(fault, "election.consul.address", c.Address)
	checkWord(fault, "election.consul.scheme", c.Scheme, "http", "https")
	if c.Prefix == "" || strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") {
		fault("election.consul.prefix is %q: use a key prefix that neither starts nor ends with a slash, e.g. fencepost", c.Prefix)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("election.consul.cert_file and key_file belong together: set both or neither")
	}
	if c.Scheme == "http" && (c.CAFile != "" || c.CertFile != "" || c.ServerName != "") {
		fault("election.consul has TLS settings, but scheme is http: set scheme: https, or remove them")
	}
}

// openConsul connects to Consul under the name of a proxy, and starts to watch it.
func openConsul(cfg Config, proxy string, log *zap.Logger) (leaseService, error) {
	c := cfg.Election.Consul
	client, err := consul.New(consul.Config{
		Address: c.Address, Scheme: c.Scheme, Token: c.Token, Prefix: c.Prefix,
		CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, ServerName: c.ServerName,
		Proxy: proxy, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	return consulService{client, c.Prefix}, nil
}

type consulService struct {
	client *consul.Client
	prefix string
}

func (s consulService) Database(name string, _ *store.Store) (election.Provider, error) {
	return s.client.Database(name), nil
}

func (s consulService) Healthy() error { return s.client.Healthy() }

func (s consulService) BumpGeneration(ctx context.Context, _ string, _ *store.Store) (string, error) {
	instanceID, err := s.client.BumpGeneration(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("consul: started a new generation under %s/, %s", s.prefix, instanceID), nil
}

func (s consulService) Close() error { return s.client.Close() }
