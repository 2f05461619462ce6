package main

import (
	"fmt"
	"slices"
	"strings"
)

// load is what pgbench runs.
type load struct {
	name   string
	script string   // of pgbench
	modes  []string // in which it can run; none are all
	args   []string // of pgbench besides
	writes bool
}

// row is a random row of the table.
const row = "\\set id random(1, 100000)\n"

var loads = []*load{
	{name: "select", script: row + "SELECT n FROM counters WHERE id = :id;\n"},
	{name: "update", script: row + "UPDATE counters SET n = n + 1 WHERE id = :id;\n", writes: true},
	{name: "tpcb", script: row + "\\set by random(-5000, 5000)\nBEGIN;\n" +
		"UPDATE counters SET n = n + :by WHERE id = :id;\nSELECT n FROM counters WHERE id = :id;\n" +
		"UPDATE tellers SET n = n + :by WHERE id = :id % 100 + 1;\nUPDATE branches SET n = n + :by WHERE id = :id % 10 + 1;\n" +
		"INSERT INTO history (id, n) VALUES (:id, :by);\nEND;\n", writes: true},
	{name: "pipeline", script: pipeline(), modes: []string{"prepared"}, writes: true},
	{name: "reconnect", script: row + "SELECT n FROM counters WHERE id = :id;\n", modes: []string{"simple"}, args: []string{"--connect"}},
}

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

func loadNames() string {
	names := make([]string, len(loads))
	for i, l := range loads {
		names[i] = l.name
	}
	return strings.Join(names, ", ")
}

// in returns those of modes in which the load can run.
func (l *load) in(modes []string) []string {
	if l.modes == nil {
		return modes
	}
	return slices.DeleteFunc(slices.Clone(modes), func(m string) bool { return !slices.Contains(l.modes, m) })
}

// suits reports whether a contender takes part.
func (l *load) suits(by *contender) bool {
	switch {
	case by.own, by.guarded:
		return l.name == "update"
	case by.reads:
		return !l.writes
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
