package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/fencepost/fencepost/election/raft"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/table"
)

const raftAbout = `
Usage: fencepost raft bootstrap [--config FILE]
       fencepost raft add [--config FILE]
       fencepost raft remove NODE [--config FILE]
       fencepost raft status [--config FILE] [--json]

Manages the nodes of election.provider raft. A node is a proxy that has
election.raft.dir; its name is proxy.id.

bootstrap begins a new cluster, whose only node is that of the configuration. Run it
once, at one proxy, and never again: two clusters would award the same leases.

add adds the node of the configuration to the running cluster. Its directory must be
empty. It votes when its proxy has started and has caught up.

remove removes a node. Stop its proxy too, or take election.raft.dir from its
configuration. It is refused unless a majority of the voters that remain answers. A node
that has lost its directory is stopped, removed, and then added again.

Run bootstrap and add as the user of the proxy, before the proxy starts: they make its
directory. They are refused while the proxy runs.

status shows the nodes. Exit code 1: one of them does not answer, cannot write its
directory, takes no part, lags or runs without being a member, or there is no
leader.`

func runRaft(ctx context.Context, t terminal, args []string) error {
	verb := ""
	if len(args) > 0 && slices.Contains([]string{"bootstrap", "add", "remove", "status"}, args[0]) {
		verb, args = args[0], args[1:]
	}
	fs := flag.NewFlagSet("raft", flag.ContinueOnError)
	path := fs.String("config", t.getenv("FENCEPOST_CONFIG"), "configuration `file`, as for serve")
	var asJSON bool
	if verb == "status" {
		fs.BoolVar(&asJSON, "json", false, "print JSON")
	}
	what := ""
	if verb == "remove" {
		what = "node"
	}
	node, err := parseOrder(t, fs, raftAbout, what, args)
	if err != nil {
		return err
	}
	if verb == "" {
		return usagef("no action given: use raft bootstrap, raft add, raft remove or raft status")
	}
	cfg, err := loadConfig(*path, t.environ())
	if err != nil {
		return err
	}
	if cfg.Election.Provider != "raft" {
		return usagef("election.provider is %s: this command manages the nodes of raft", cfg.Election.Provider)
	}
	if cfg.Election.Raft.Dir == "" && (verb == "bootstrap" || verb == "add") {
		return usagef("election.raft.dir is empty: this proxy is no node")
	}
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	return changeRaft(ctx, t, electors.RaftConfig(cfg, "raft "+verb, warnings(t.stderr)), verb, node, asJSON)
}

// warnings returns a log that prints warnings as they are.
func warnings(w io.Writer) *zap.Logger {
	text := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "message"})
	return zap.New(zapcore.NewCore(text, zapcore.AddSync(w), zap.WarnLevel))
}

// changeRaft does what was asked for.
func changeRaft(ctx context.Context, t terminal, cfg raft.Config, verb, node string, asJSON bool) error {
	switch verb {
	case "bootstrap":
		if err := raft.Bootstrap(ctx, cfg); err != nil {
			return err
		}
		fmt.Fprintf(t.stdout, "a new cluster has begun: %s is its only node, in %s. Start its proxy, then add the others\n", cfg.Name, cfg.Dir)
	case "add":
		if err := raft.Add(ctx, cfg); err != nil {
			return err
		}
		fmt.Fprintf(t.stdout, "the node %s was added, in %s. Start its proxy\n", cfg.Name, cfg.Dir)
	case "remove":
		if err := raft.Remove(ctx, cfg, node); err != nil {
			return err
		}
		fmt.Fprintf(t.stdout, "the node %s was removed. Its directory is of no use any more\n", node)
	default:
		s, err := raft.Look(ctx, cfg)
		if err != nil {
			return err
		}
		return showRaft(t.stdout, s, asJSON)
	}
	return nil
}

// raftNode is a line of raft status.
type raftNode struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// Member is "leader", "voter", "learner" for a node that has not caught up yet, "no member", or
	// "unknown" without a leader.
	Member  string `json:"member"`
	State   string `json:"state,omitempty"`   // as the node says
	Applied uint64 `json:"applied,omitempty"` // the index of the last entry that it has applied
	Error   string `json:"error,omitempty"`   // what is wrong with it, and what to do
}

// raftNodes returns the peers of the configuration, and members that it does not name.
func raftNodes(s raft.Status) (all []raftNode) {
	members := map[string]raft.Member{}
	for _, m := range s.Members {
		members[m.Name] = m
	}
	for _, n := range s.Nodes {
		one := raftNode{Name: n.Name, Address: n.Address, Member: "unknown", State: n.Status.State, Applied: n.Status.Applied}
		m := members[n.Name]
		if s.Err == nil {
			one.Member = memberWord(m)
		}
		if problem, remedy := s.Trouble(n); problem != "" {
			one.Error = problem + ". " + remedy
		}
		delete(members, n.Name)
		all = append(all, one)
	}
	for _, m := range members {
		all = append(all, raftNode{Name: m.Name, Address: m.Address, Member: memberWord(m), Error: "election.raft.peers does not name it"})
	}
	slices.SortFunc(all, func(a, b raftNode) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

func memberWord(m raft.Member) string {
	switch {
	case m.Name == "":
		return "no member"
	case m.Leader:
		return "leader"
	case m.Voter:
		return "voter"
	}
	return "learner"
}

// showRaft prints the nodes. It returns an error if something is wrong with them.
func showRaft(w io.Writer, s raft.Status, asJSON bool) error {
	nodes := raftNodes(s)
	errs := []error{s.Err}
	for _, n := range nodes {
		if n.Error != "" {
			errs = append(errs, fmt.Errorf("node %s: %s", n.Name, n.Error))
		}
	}
	if asJSON {
		return errors.Join(append(errs, printJSON(w, nodes))...)
	}
	rows := make([][]string, len(nodes))
	for i, n := range nodes {
		rows[i] = []string{n.Name, n.Address, n.Member, n.State, strconv.FormatUint(n.Applied, 10)}
	}
	return errors.Join(append(errs, table.Print(w, "NODE\tADDRESS\tMEMBER\tSTATE\tAPPLIED", rows))...)
}
