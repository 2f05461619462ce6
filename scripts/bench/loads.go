package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// load is what is run.
type load struct {
	name string
	*kind
	over    string   // the name of the route
	script  string   // of pgbench
	modes   []string // in which pgbench can run it; none are all
	clients []int    // with how many pgbench can run it; none are all
	args    []string // of pgbench besides
	writes  bool
}

// kind is what loads have in common.
type kind struct {
	run  runner
	unit string                                 // of the rate
	per  string                                 // what CPU and waits are for
	size func(*plan) (mode string, clients int) // how much it is, which stands for the mode, and over how many connections; nil with pgbench
	less bool                                   // less is better
}

// runner runs a cell once with a contender.
type runner func(ctx context.Context, s *servers, p *plan, by *contender, c *cell) (sample, error)

var (
	transaction = &kind{run: pgbench, unit: "transactions/s", per: "transaction"}
	connections = &kind{run: idle, unit: "kB/connection", per: "login", size: opened, less: true}
	copying     = kind{unit: "MB/s", per: "MB", size: copied}
)

// of is a kind with its way to run.
func (k kind) of(once bulk) *kind {
	k.run = once.run
	return &k
}

// row is a random row of the table.
const row = "\\set id random(1, 100000)\n"

const (
	oneRead  = row + "SELECT n FROM counters WHERE id = :id;\n"
	oneWrite = row + "UPDATE counters SET n = n + 1 WHERE id = :id;\n"
)

var loads = []*load{
	{name: "select", kind: transaction, script: oneRead},
	{name: "update", kind: transaction, script: oneWrite, writes: true},
	{name: "tpcb", kind: transaction, script: row + "\\set by random(-5000, 5000)\nBEGIN;\n" +
		"UPDATE counters SET n = n + :by WHERE id = :id;\nSELECT n FROM counters WHERE id = :id;\n" +
		"UPDATE tellers SET n = n + :by WHERE id = :id % 100 + 1;\nUPDATE branches SET n = n + :by WHERE id = :id % 10 + 1;\n" +
		"INSERT INTO history (id, n) VALUES (:id, :by);\nEND;\n", writes: true},
	{name: "pipeline", kind: transaction, script: pipeline(), modes: []string{"prepared"}, writes: true},
	{name: "reconnect", kind: transaction, script: oneRead, modes: []string{"simple"}, args: []string{"--connect"}},
	{name: "select-tls", kind: transaction, over: "tls", script: oneRead, clients: several},
	{name: "update-tls", kind: transaction, over: "tls", script: oneWrite, clients: several, writes: true},
	{name: "select-socket", kind: transaction, over: "socket", script: oneRead, clients: several},
	{name: "update-socket", kind: transaction, over: "socket", script: oneWrite, clients: several, writes: true},
	{name: "copy-out", kind: copying.of(copyOut)},
	{name: "copy-in", kind: copying.of(copyIn), writes: true},
	{name: "rows", kind: &kind{run: bulk(readRows).run, unit: "1,000 rows/s", per: "1,000 rows", size: aMillion}},
	{name: "idle", kind: connections, over: "stub"},
	{name: "idle-tls", kind: connections, over: "stub-tls"},
}

// several are the numbers of clients that show most.
var several = []int{8, 32}

func copied(p *plan) (string, int) { return fmt.Sprint(p.size, " MB"), 1 }
func aMillion(*plan) (string, int) { return "1000000 rows", 1 }
func opened(p *plan) (string, int) { return fmt.Sprint(p.connections, " connections"), p.connections }

// pipeline is a script that updates 20 random rows, each from a range of its own and in ascending order,
// so that two clients cannot deadlock: pgbench would count that as a failed transaction.
func pipeline() string {
	const rows, updates = 100_000, 20
	var b strings.Builder
	b.WriteString("\\startpipeline\n")
	for i := range updates {
		fmt.Fprintf(&b, "\\set id random(%d, %d)\nUPDATE counters SET n = n + 1 WHERE id = :id;\n", i*rows/updates+1, (i+1)*rows/updates)
	}
	b.WriteString("\\endpipeline\n")
	return b.String()
}

// ownFence is the script by which an application checks a fencing token itself.
const ownFence = row + "BEGIN;\nSELECT epoch FROM fences WHERE resource = 'bench' AND epoch = 1 FOR SHARE;\n" +
	"UPDATE counters SET n = n + 1 WHERE id = :id;\nCOMMIT;\n"

func loadNamed(name string) *load {
	for _, l := range loads {
		if l.name == name {
			return l
		}
	}
	return nil
}

func loadNames(between string) string {
	names := make([]string, len(loads))
	for i, l := range loads {
		names[i] = l.name
	}
	return strings.Join(names, between)
}

// cells returns what the plan measures of the load.
func (l *load) cells(p *plan) (all []*cell) {
	modes, clients := common(p.modes, l.modes), common(p.clients, l.clients)
	if l.size != nil {
		mode, n := l.size(p)
		modes, clients = []string{mode}, []int{n}
	}
	for _, mode := range modes {
		for _, n := range clients {
			all = append(all, &cell{load: l, mode: mode, clients: n, runs: map[string][]sample{}})
		}
	}
	return all
}

// common returns those of all that are possible; if nothing is said of that, all are.
func common[T comparable](all, possible []T) []T {
	if possible == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(one T) bool { return !slices.Contains(possible, one) })
}

// suits reports whether a contender takes part.
func (l *load) suits(by *contender) bool {
	switch {
	case l.over != by.over.name:
		return false
	case by.own, by.guarded:
		return l.name == "update"
	default:
		return true
	}
}

// scriptFor is the script with which a contender runs the load.
func (l *load) scriptFor(by *contender) string {
	switch {
	case by.own:
		return ownFence
	case by.guarded:
		return strings.ReplaceAll(l.script, "counters", "guarded")
	default:
		return l.script
	}
}
