package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
)

// base is the contender with which the others are compared, and none is that without a proxy.
const base, none = "pgbouncer", "direct"

// cell is one load with one mode and number of clients.
type cell struct {
	load    *load
	mode    string
	clients int
	names   []string // of the contenders, in their order
	runs    map[string][]sample
	from    origin
}

// results is everything that was measured.
type results struct {
	cells []*cell
}

// is reports whether two cells measure the same.
func (c *cell) is(other *cell) bool {
	return c.load == other.load && c.mode == other.mode && c.clients == other.clients
}

// add adds a run of a contender.
func (c *cell) add(name string, one sample) {
	if c.runs[name] == nil {
		c.names = append(c.names, name)
	}
	c.runs[name] = append(c.runs[name], one)
}

// setting is how the load was run.
func (c *cell) setting() string {
	switch {
	case c.load.size != nil:
		return c.mode
	case c.clients == 1:
		return c.mode + ", 1 client"
	default:
		return fmt.Sprintf("%s, %d clients", c.mode, c.clients)
	}
}

func (c *cell) name() string { return c.load.name + ", " + c.setting() }

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

func rate(s sample) float64     { return s.rate }
func cpu(s sample) float64      { return s.cpu }
func switches(s sample) float64 { return s.switches }
func p50(s sample) float64      { return s.p50 }
func p99(s sample) float64      { return s.p99 }
func resident(s sample) float64 { return s.resident }

// ratio compares a figure of a contender with that of another in the same rounds; 0 if either is missing.
func (c *cell) ratio(name, to string, of func(sample) float64) float64 {
	below := c.median(to, of)
	if below == 0 {
		return 0
	}
	return c.median(name, of) / below
}

// line is the cell in one line, for somebody who waits.
func (c *cell) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s:", c.name(), c.load.unit)
	for _, name := range c.names {
		fmt.Fprintf(&b, "  %s %s", name, amount(c.median(name, rate)))
		if r := c.ratio(name, base, rate); r != 0 && name != base {
			fmt.Fprintf(&b, " (%.2f)", r)
		}
	}
	return b.String()
}

// replace puts newer cells in the place of those that measure the same, and orders all.
func (all *results) replace(newer *results) {
	for _, c := range newer.cells {
		all.cells = append(slices.DeleteFunc(all.cells, c.is), c)
	}
	modes := []string{"simple", "prepared"} // others stand alone
	slices.SortStableFunc(all.cells, func(a, b *cell) int {
		return cmp.Or(cmp.Compare(slices.Index(loads, a.load), slices.Index(loads, b.load)),
			cmp.Compare(slices.Index(modes, a.mode), slices.Index(modes, b.mode)), cmp.Compare(a.clients, b.clients))
	})
}

// of returns the cells of a load.
func (all *results) of(l *load) (cells []*cell) {
	for _, c := range all.cells {
		if c.load == l {
			cells = append(cells, c)
		}
	}
	return cells
}

// loads are those that were measured, in their order.
func (all *results) loads() (some []*load) {
	for _, l := range loads {
		if len(all.of(l)) > 0 {
			some = append(some, l)
		}
	}
	return some
}

// tables is all results in Markdown, a table for each load.
func (all *results) tables() string {
	var b strings.Builder
	for _, l := range all.loads() {
		b.WriteString(all.figures(l) + "\n")
	}
	return b.String()
}

// figures is the results of a load in Markdown: the page of the load.
func (all *results) figures(l *load) string {
	cells := all.of(l)
	return fmt.Sprintf("# %s\n\n%s\n%s", l.name, measured(cells), table(l, cells))
}

// contents links to the pages of the loads.
func (all *results) contents() string {
	var b strings.Builder
	for _, l := range all.loads() {
		fmt.Fprintf(&b, "- [%s](%s/%s.md)\n", l.name, path.Base(figures), l.name)
	}
	return b.String()
}

// table is the cells of a load in Markdown.
func table(l *load, cells []*cell) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | contender | %s | / PgBouncer | / direct | p50 ms | p99 ms | CPU µs per %s | waits | peak MB |\n|---|---|---|---|---|---|---|---|---|---|\n", l.unit, l.per)
	for _, c := range cells {
		for i, name := range c.names {
			setting := ""
			if i == 0 {
				setting = c.setting()
			}
			fmt.Fprintf(&b, "| %s | %s | %s |", setting, name, amount(c.median(name, rate)))
			for _, v := range []struct {
				format string
				figure float64
			}{
				{"%.2f", c.ratio(name, base, rate)}, {"%.2f", c.ratio(name, none, rate)}, {"%.2f", c.median(name, p50)}, {"%.2f", c.median(name, p99)},
				{"%.1f", c.median(name, cpu)}, {"%.2f", c.median(name, switches)}, {"%.0f", c.median(name, resident)},
			} {
				fmt.Fprintf(&b, " %s |", figure(v.format, v.figure, "–"))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// figure writes what may be missing.
func figure(format string, v float64, missing string) string {
	if v == 0 {
		return missing
	}
	return fmt.Sprintf(format, v)
}

// amount writes a rate, which is small for the memory of a connection.
func amount(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
