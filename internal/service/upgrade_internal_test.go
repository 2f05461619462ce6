package service

import (
	"errors"
	"slices"
	"testing"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/service/upgrade"
)

// TestANodeOfRaftIsNotUpgraded, neither from nor into one. A proxy that only asks the nodes is.
func TestANodeOfRaftIsNotUpgraded(t *testing.T) {
	t.Parallel()
	var node config.Config
	node.Election.Provider, node.Election.Raft.Dir = "raft", "/var/lib/fencepost/raft"
	client := node
	client.Election.Raft.Dir = ""
	for _, c := range []struct {
		cfg  config.Config
		want error
	}{{node, errRaftNode}, {client, nil}} {
		var s Server
		s.settings.Start(c.cfg)
		if err := s.upgradable(t.Context()); !errors.Is(err, c.want) {
			t.Errorf("with election.raft.dir %q: %v, want %v", c.cfg.Election.Raft.Dir, err, c.want)
		}
	}
	if _, err := New(node, Options{Replaces: &upgrade.Predecessor{}}); !errors.Is(err, errRaftNode) {
		t.Errorf("a node that is to replace a process: %v", err)
	}
}

// TestOnlyNewFaultsKeepAProcessFromTakingOver: of one place and one kind, there was none before.
func TestOnlyNewFaultsKeepAProcessFromTakingOver(t *testing.T) {
	t.Parallel()
	fault := func(where string, kind faults.Kind, problem, remedy string) faults.Active {
		return faults.Active{Where: where, Fault: faults.Fault{Kind: kind, Problem: problem, Remedy: remedy}}
	}
	before := []faults.Active{fault("database a", faults.Schema, "old", ""), fault("lease service", faults.LeaseService, "silent", "")}
	now := []faults.Active{
		fault("database a", faults.Schema, "in other words", "Migrate."), fault("database b", faults.Schema, "old", "Migrate."),
		fault("lease service", faults.LeaseDenied, "denied", ""),
	}
	if got := newFaults(before, now); !slices.Equal(got, []string{"database b: old Migrate.", "lease service: denied"}) {
		t.Errorf("new are %q", got)
	}
}
