package main

import (
	"strings"
	"testing"
)

// TestBars: a bar compares the median of its contender in its cells, and says what the figures say where it
// falls short.
func TestBars(t *testing.T) {
	update := func(clients int, fenced, own float64) *cell {
		return single("update", "simple", clients, map[string]sample{
			base: {rate: 100, cpu: 20}, "own fence": {rate: own, cpu: 80}, "haproxy": {rate: 80, cpu: 22}, "unfenced": {rate: 90, cpu: 24}, "fenced": {rate: fenced, cpu: 30},
		})
	}
	for _, c := range []struct {
		name   string
		cells  []*cell
		row    string // of the table
		reason string // "" is none
	}{
		{"nothing was measured", nil, "| update, fenced / PgBouncer | 0.92 | 1 |  | not measured |", ""},
		{"the goal", []*cell{update(8, 100, 30), update(32, 101, 30)}, "| update, fenced / PgBouncer | 0.92 | 1 | simple 8 1.00; simple 32 1.01 | goal |", ""},
		{"the floor", []*cell{update(8, 92, 30), update(32, 101, 30)}, "| update, fenced / PgBouncer | 0.92 | 1 | simple 8 0.92; simple 32 1.01 | floor |", ""},
		{
			"short", []*cell{update(8, 95, 30), update(32, 91, 30)}, "| update, fenced / PgBouncer | 0.92 | 1 | simple 8 0.95; simple 32 **0.91** | short |",
			"misses the floor in 1 of 2. In the same rounds: unfenced 0.90, haproxy 0.80. CPU of the proxy: 1.50 times PgBouncer's. " + relays,
		},
		{"another number of clients", []*cell{update(128, 10, 30)}, "| update, fenced / PgBouncer | 0.92 | 1 |  | not measured |", ""},
		{
			"less is better", []*cell{update(8, 95, 30)}, "| CPU per transaction, fenced / PgBouncer | ≤ 1.1 | ≤ 1 | update simple 8 **1.50** | short |",
			"misses the floor in 1 of 1. In the same rounds: unfenced 1.20, haproxy 1.10. " + relays,
		},
		{
			"another base", []*cell{update(8, 95, 40)}, "| update, fenced / own fence | 2.5 | 3 | simple 8 **2.38** | short |",
			"misses the floor in 1 of 1. In the same rounds: pgbouncer 2.50, unfenced 2.25. " + relays,
		},
		{
			"as much as is allowed", []*cell{single("idle", "9 connections", 9, map[string]sample{"unfenced": {rate: 10}, "fenced": {rate: 20}})},
			"| kB per idle connection | ≤ 20 | ≤ 10 | unfenced 10.00; fenced 20.00 | floor |", "",
		},
		{
			"no ratio", []*cell{single("idle", "9 connections", 9, map[string]sample{base: {rate: 2}, "unfenced": {rate: 9}, "fenced": {rate: 25}})},
			"| kB per idle connection | ≤ 20 | ≤ 10 | unfenced 9.00; fenced **25.00** | short |",
			"misses the floor in 1 of 2. In the same rounds: pgbouncer 2.00. The figure",
		},
		{
			"no proxy", []*cell{single("rows", "1000000 rows", 1, map[string]sample{none: {rate: 100}, base: {rate: 70, cpu: 1}, "fenced": {rate: 80, cpu: 1}})},
			"| bulk / direct | 0.9 | 0.97 | rows fenced **0.80** | short |", "misses the floor in 1 of 1. In the same rounds: pgbouncer 0.70. A proxy",
		},
	} {
		text := (&results{cells: c.cells}).bars()
		if !strings.Contains(text, c.row+"\n") {
			t.Errorf("%s: %s is not in %s", c.name, c.row, text)
		}
		reason := "- **" + strings.TrimSpace(strings.Split(c.row, "|")[1]) + "**: "
		if c.reason == "" && strings.Contains(text, reason) {
			t.Errorf("%s: there is a reason in %s", c.name, text)
		}
		if c.reason != "" && !strings.Contains(text, reason+c.reason) {
			t.Errorf("%s: the reason %q is not in %s", c.name, c.reason, text)
		}
	}
}
