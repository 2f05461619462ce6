package main

import (
	"fmt"
	"slices"
	"strings"
)

// base is the contender with which the others are compared.
const base = "pgbouncer"

// cell is one load with one mode and number of clients.
type cell struct {
	load    *load
	mode    string
	clients int
	names   []string // of the contenders, in their order
	runs    map[string][]sample
}

// results is everything that was measured.
type results struct {
	plan  *plan
	cells []*cell
}

func (c *cell) name() string {
	clients := "clients"
	if c.clients == 1 {
		clients = "client"
	}
	return fmt.Sprintf("%s, %s, %d %s", c.load.name, c.mode, c.clients, clients)
}

// median is that of one figure of a contender's runs.
func (c *cell) median(name string, of func(sample) float64) float64 {
	var all []float64
	for _, run := range c.runs[name] {
		all = append(all, of(run))
	}
	slices.Sort(all)
	switch n := len(all); {
	case n == 0:
		return 0
	case n%2 == 1:
		return all[n/2]
	default:
		return (all[n/2-1] + all[n/2]) / 2
	}
}

func tps(s sample) float64      { return s.tps }
func cpu(s sample) float64      { return s.cpu }
func switches(s sample) float64 { return s.switches }
func p50(s sample) float64      { return s.p50 }
func p99(s sample) float64      { return s.p99 }

// ratio compares the throughput of a contender with that of the base in the same rounds; 0 if either
// is missing.
func (c *cell) ratio(name string) float64 {
	below := c.median(base, tps)
	if below == 0 {
		return 0
	}
	return c.median(name, tps) / below
}

// line is the cell in one line, for somebody who waits.
func (c *cell) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", c.name())
	for _, name := range c.names {
		fmt.Fprintf(&b, "  %s %.0f/s", name, c.median(name, tps))
		if r := c.ratio(name); r != 0 && name != base {
			fmt.Fprintf(&b, " (%.2f)", r)
		}
	}
	return b.String()
}

// table is all results in Markdown.
func (all *results) table() string {
	var b strings.Builder
	b.WriteString("| load | contender | transactions/s | / PgBouncer | p50 ms | p99 ms | CPU µs | waits |\n|---|---|---|---|---|---|---|---|\n")
	for _, c := range all.cells {
		for i, name := range c.names {
			load := ""
			if i == 0 {
				load = c.name()
			}
			fmt.Fprintf(&b, "| %s | %s | %.0f | %s | %.2f | %.2f | %s | %s |\n", load, name, c.median(name, tps), figure("%.2f", c.ratio(name)),
				c.median(name, p50), c.median(name, p99), figure("%.1f", c.median(name, cpu)), figure("%.2f", c.median(name, switches)))
		}
	}
	return b.String()
}

// figure writes what may be missing.
func figure(format string, v float64) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf(format, v)
}
