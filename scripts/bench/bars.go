package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// bar is what a figure should reach: the floor at least, and the goal if possible.
type bar struct {
	what        string
	loads       []string
	clients     []int // nil is any number
	who         []string
	to          string // who it is compared with; empty if the figure counts by itself
	of          func(sample) float64
	floor, goal float64
	less        bool     // less is better: the floor is the most that is allowed
	beside      []string // whose figures explain where it falls short
	why         string   // it falls short, besides the figures
}

// transactions are the loads of single transactions on connections that exist.
var transactions = []string{"select", "update", "tpcb", "pipeline"}

var bulks = []string{"copy-out", "copy-in", "rows"}

// What is said of bars that fall short. shared is about all of them.
const (
	shared = "Clients, proxy and PostgreSQL share the processors, so what a proxy uses more than another is missing elsewhere."
	relays = "Both relay the messages. Fencepost also counts which replies are due, and looks for two words in the texts of a leader."
	memory = "The figure is what the process has in memory: the state of a session and of both connections, and what Go's collector has not given back."
)

var bars = []bar{
	{what: "update, fenced / PgBouncer", loads: []string{"update"}, clients: several, who: []string{"fenced"}, to: base, of: rate, floor: 0.92, goal: 1, beside: []string{"unfenced", "haproxy"}, why: relays},
	{what: "select, fenced / PgBouncer", loads: []string{"select"}, clients: several, who: []string{"fenced"}, to: base, of: rate, floor: 0.9, goal: 1, beside: []string{"unfenced", "haproxy"}, why: relays},
	{what: "select, unfenced / PgBouncer", loads: []string{"select"}, clients: several, who: []string{"unfenced"}, to: base, of: rate, floor: 1, goal: 1.1, beside: []string{"haproxy"}, why: relays},
	{what: "the fence: fenced / unfenced", loads: []string{"select", "update"}, who: []string{"fenced"}, to: "unfenced", of: rate, floor: 0.98, goal: 1, beside: []string{"haproxy"}, why: "Fencepost looks for two words in the texts of a leader. Nothing else of what it does for a transaction differs."},
	{what: "one client, fenced / PgBouncer", loads: transactions, clients: []int{1}, who: []string{"fenced"}, to: base, of: rate, floor: 0.95, goal: 1.02, beside: []string{"unfenced", "haproxy"}, why: "With one client nothing overlaps, so all that the proxy takes makes each transaction longer, and each message finds the proxy asleep."},
	{what: "CPU per transaction, fenced / PgBouncer", loads: transactions, clients: several, who: []string{"fenced"}, to: base, of: cpu, floor: 1.1, goal: 1, less: true, beside: []string{"unfenced", "haproxy"}, why: "Both relay the messages. Fencepost also counts which replies are due, and looks for two words in the texts of a leader."},
	{what: "waits per transaction, fenced / PgBouncer", loads: transactions, clients: []int{32}, who: []string{"fenced"}, to: base, of: switches, floor: 1.1, goal: 0.8, less: true, beside: []string{"unfenced", "haproxy"}, why: "PgBouncer has one thread, which rarely waits while there are many clients. Go's runtime puts a thread to sleep whenever it has nothing to do, and wakes it for the next message."},
	{what: "update, fenced / own fence", loads: []string{"update"}, clients: several, who: []string{"fenced"}, to: "own fence", of: rate, floor: 2.5, goal: 3, beside: []string{base, "unfenced"}, why: relays},
	{what: "bulk / direct", loads: bulks, who: []string{"unfenced", "fenced"}, to: none, of: rate, floor: 0.9, goal: 0.97, beside: []string{"pgbouncer", "haproxy"}, why: "A proxy reads and writes all bytes once more, on processors that client and PostgreSQL use as well."},
	{what: "bulk / PgBouncer", loads: bulks, who: []string{"unfenced", "fenced"}, to: base, of: rate, floor: 1, goal: 1.3, beside: []string{"haproxy"}, why: relays},
	{what: "reconnect, unfenced / HAProxy", loads: []string{"reconnect"}, who: []string{"unfenced"}, to: "haproxy", of: rate, floor: 0.95, goal: 1, beside: []string{none}, why: "Both open a connection to PostgreSQL for each client. Fencepost also relays each message of the authentication."},
	{what: "reconnect, fenced / unfenced", loads: []string{"reconnect"}, who: []string{"fenced"}, to: "unfenced", of: rate, floor: 0.85, goal: 0.95, beside: []string{none, "haproxy"}, why: "A fenced connection also asks its backend which one it is, joins its worker's candidacy, and is registered by a statement on a control connection."},
	{what: "kB per idle connection", loads: []string{"idle"}, who: []string{"unfenced", "fenced"}, of: rate, floor: 20, goal: 10, less: true, beside: []string{base}, why: memory},
	{what: "kB per idle connection, TLS on both sides", loads: []string{"idle-tls"}, who: []string{"unfenced", "fenced"}, of: rate, floor: 48, goal: 32, less: true, beside: []string{base}, why: memory},
}

// point is one figure that a bar is about.
type point struct {
	cell  *cell
	who   string
	value float64
}

// points returns those that were measured.
func (b bar) points(all *results) (points []point) {
	for _, c := range all.cells {
		if !slices.Contains(b.loads, c.load.name) || b.clients != nil && !slices.Contains(b.clients, c.clients) {
			continue
		}
		for _, who := range b.who {
			if v := b.value(c, who); v != 0 {
				points = append(points, point{c, who, v})
			}
		}
	}
	return points
}

// value is the figure of a contender as the bar compares it; 0 if it was not measured.
func (b bar) value(c *cell, who string) float64 {
	if b.to == "" {
		return c.median(who, b.of)
	}
	return c.ratio(who, b.to, b.of)
}

// meets reports whether a figure reaches what is asked of it.
func (b bar) meets(v, asked float64) bool {
	if b.less {
		return v <= asked
	}
	return v >= asked
}

// short returns the points that do not reach the floor.
func (b bar) short(points []point) []point {
	return slices.DeleteFunc(slices.Clone(points), func(p point) bool { return b.meets(p.value, b.floor) })
}

// name tells a point from the bar's others.
func (b bar) name(p point) string {
	var words []string
	if len(b.loads) > 1 {
		words = append(words, p.cell.load.name)
	}
	if p.cell.load.size == nil {
		words = append(words, p.cell.mode)
	}
	if p.cell.load.size == nil && (b.clients == nil || len(b.clients) > 1) {
		words = append(words, fmt.Sprint(p.cell.clients))
	}
	if len(b.who) > 1 {
		words = append(words, p.who)
	}
	return strings.Join(words, " ")
}

// bars compares the medians with all bars, and says why they fall short.
func (all *results) bars() string {
	var table, reasons strings.Builder
	table.WriteString("A floor is what each median should reach at least, and a goal what it should reach if possible; ≤ says that it should not be more. Numbers behind a mode are those of clients.\n\n")
	table.WriteString("| bar | floor | goal | medians (in bold: misses the floor) | |\n|---|---|---|---|---|\n")
	for _, b := range bars {
		points := b.points(all)
		var figures []string
		for _, p := range points {
			v := fmt.Sprintf("%.2f", p.value)
			if !b.meets(p.value, b.floor) {
				v = "**" + v + "**"
			}
			figures = append(figures, strings.TrimSpace(b.name(p)+" "+v))
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s |\n", b.what, b.asked(b.floor), b.asked(b.goal), strings.Join(figures, "; "), b.reached(points))
		if short := b.short(points); len(short) > 0 {
			fmt.Fprintf(&reasons, "- **%s**: misses the floor in %d of %d. %s%s\n", b.what, len(short), len(points), b.evidence(short), b.why)
		}
	}
	if reasons.Len() == 0 {
		return table.String()
	}
	return table.String() + "\n**Why some fall short.** " + shared + "\n\n" + reasons.String()
}

func (b bar) asked(v float64) string {
	if b.less {
		return fmt.Sprint("≤ ", v)
	}
	return fmt.Sprint(v)
}

// reached says in one word what was reached by all points.
func (b bar) reached(points []point) string {
	all := func(asked float64) bool {
		return !slices.ContainsFunc(points, func(p point) bool { return !b.meets(p.value, asked) })
	}
	switch {
	case len(points) == 0:
		return "not measured"
	case all(b.goal):
		return "goal"
	case all(b.floor):
		return "floor"
	default:
		return "short"
	}
}

// evidence says what the same cells show of others, and of the processor's time.
func (b bar) evidence(short []point) string {
	var others []string
	for _, name := range b.beside {
		if r := span(short, func(p point) float64 { return b.value(p.cell, name) }); r != "" {
			others = append(others, name+" "+r)
		}
	}
	text := ""
	if len(others) > 0 {
		text = "In the same rounds: " + strings.Join(others, ", ") + ". "
	}
	used := span(short, func(p point) float64 { return p.cell.ratio(p.who, b.to, cpu) })
	if b.to != base || used == "" || b.less {
		return text
	}
	return text + "CPU of the proxy: " + used + " times PgBouncer's. "
}

// span writes the least and the most of a figure, as far as it was measured.
func span(points []point, of func(point) float64) string {
	least, most := math.Inf(1), 0.0
	for _, p := range points {
		if v := of(p); v != 0 {
			least, most = min(least, v), max(most, v)
		}
	}
	low, high := fmt.Sprintf("%.2f", least), fmt.Sprintf("%.2f", most)
	switch {
	case most == 0:
		return ""
	case low == high:
		return low
	default:
		return low + " to " + high
	}
}
