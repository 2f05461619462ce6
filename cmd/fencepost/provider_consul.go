package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/consul"
	"github.com/fencepost/fencepost/fencing/store"
)

// answerTimeout bounds a request that a command sends to Consul.
const answerTimeout = 10 * time.Second

// consulElector keeps the leases of all databases in one Consul.
var consulElector = elector{
	Provider: config.Provider{
		Name:     "consul",
		Validate: func(c *config.Config, fault config.Fault) { c.Election.Consul.Validate(fault) },
	},
	open: openConsul,
}

// openConsul connects to Consul under the name of a proxy, and starts to watch it.
func openConsul(cfg config.Config, proxy string, log *zap.Logger) (leaseService, error) {
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

func (s consulService) Check(ctx context.Context, ttls []time.Duration) error {
	return s.client.Check(ctx, ttls)
}

func (s consulService) BumpGeneration(ctx context.Context, _ string, _ *store.Store) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	instanceID, err := s.client.BumpGeneration(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return "", fmt.Errorf("%w. Make sure that Consul runs, that it has a leader, and that election.consul.address is right; then run this again, "+
			"which is harmless also if Consul still carries out this request", err)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("consul: started a new generation under %s/, %s", s.prefix, instanceID), nil
}

func (s consulService) Close() error { return s.client.Close() }
