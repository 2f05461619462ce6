package electors

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/raft"
	"github.com/fencepost/fencepost/internal/config"
)

// raftElector keeps the leases of all databases in the nodes that proxies are.
var raftElector = Elector{
	Provider: config.Provider{Name: "raft", Validate: config.ValidateRaft},
	Open:     openRaft,
	Serve:    serveRaft,
}

// raftPrefix is the prefix of all keys. Nothing but Fencepost uses the nodes.
const raftPrefix = "fencepost"

// RaftConfig returns what the settings mean for the named proxy.
func RaftConfig(cfg config.Config, proxy string, log *zap.Logger) raft.Config {
	c := cfg.Election.Raft
	return raft.Config{
		Name: cfg.Proxy.ID, Listen: c.Listen, Peers: c.Peers.Addresses(), Dir: c.Dir,
		TLSClient: c.TLSClient,
		Prefix:    raftPrefix, Proxy: proxy, Logger: log,
	}
}

// raftService is a network that says how many of its nodes may be lost.
type raftService struct {
	network
	cfg raft.Config
}

// openRaft prepares requests to the nodes, and starts to watch them.
func openRaft(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	cfg.Election.Raft.Dir = ""
	return serveRaft(cfg, proxy, log)
}

// serveRaft is openRaft for a proxy, and starts its node if it is one.
func serveRaft(cfg config.Config, proxy string, log *zap.Logger) (Service, error) {
	c := RaftConfig(cfg, proxy, log)
	client, err := raft.New(c)
	if err != nil {
		return nil, err
	}
	return raftService{network{
		client:   client,
		database: func(name string) elector.Provider { return client.Database(name) },
		name:     "raft", title: "Raft", setting: "election.raft.peers", prefix: c.Prefix,
	}, c}, nil
}

// Risks implements Adviser.
func (s raftService) Risks(ctx context.Context) ([]elector.Risk, error) {
	status, err := raft.Look(ctx, s.cfg)
	if err != nil {
		return nil, err
	}
	if status.Err != nil {
		return nil, status.Err
	}
	return raftRisks(status), nil
}

// raftRisks returns the risks that follow from how many nodes may be lost.
func raftRisks(s raft.Status) (found []elector.Risk) {
	voters := 0
	for _, m := range s.Members {
		if m.Voter {
			voters++
		}
	}
	if voters < 3 {
		found = append(found, elector.Risk{
			Kind:   elector.RiskNotRedundant,
			Seen:   fmt.Sprintf("Raft has %d of the three nodes that it needs to go on without one of them", voters),
			Remedy: "Add nodes with fencepost raft add, each on a host of its own.",
		})
	}
	for _, n := range s.Nodes {
		if problem, remedy := s.Trouble(n); problem != "" {
			found = append(found, elector.Risk{
				Kind: elector.RiskNotRedundant, Seen: fmt.Sprintf("the node %s of Raft: %s", n.Name, problem), Remedy: remedy,
			})
		}
	}
	return found
}
