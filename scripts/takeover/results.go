package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ways are the ways in which a leader goes, as the benchmark and the page name them.
var ways = []struct {
	name, title string
	some        bool // it was measured with some of the lease services only
}{
	{"closed", "it disconnected", false},
	{"frozen", "it froze", false},
	{"killed", "its proxy was killed", false},
	{"lost", "the service lost its leader", true},
}

// none stands in the table where nothing was measured.
const none = "–"

// result is the median and the longest time of the takeovers of one kind, in milliseconds.
type result struct{ median, longest float64 }

// results is what was measured.
type results struct {
	services []string // in the order in which they were measured
	times    int
	of       map[string]map[string]result // by service and way
}

// parse reads the output of the benchmark.
func parse(output string) (*results, error) {
	all := &results{of: map[string]map[string]result{}}
	for line := range strings.Lines(output) {
		name, isTakeover := strings.CutPrefix(line, "BenchmarkTakeover/")
		fields := strings.Fields(name)
		if !isTakeover || len(fields) < 2 {
			continue
		}
		service, way, _ := strings.Cut(fields[0], "/")
		way, _, _ = strings.Cut(way, "-")
		r := result{}
		var err error
		if all.times, err = strconv.Atoi(fields[1]); err != nil {
			return nil, fmt.Errorf("read %q: %w", line, err)
		}
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("read %q: %w", line, err)
			}
			switch fields[i+1] {
			case "ms/median":
				r.median = value
			case "ms/max":
				r.longest = value
			}
		}
		if r.median == 0 || r.longest == 0 {
			return nil, fmt.Errorf("%q has no times", line)
		}
		if all.of[service] == nil {
			all.services = append(all.services, service)
			all.of[service] = map[string]result{}
		}
		all.of[service][way] = r
	}
	if len(all.services) == 0 {
		return nil, errors.New("the output has no takeovers")
	}
	for _, service := range all.services {
		for _, way := range ways {
			if _, ok := all.of[service][way.name]; !ok && !way.some {
				return nil, fmt.Errorf("no takeover of %s when %s was measured", service, way.title)
			}
		}
	}
	slices.Sort(all.services)
	return all, nil
}

// table is the results in Markdown.
func (all *results) table() string {
	var b strings.Builder
	b.WriteString("| lease service |")
	for _, way := range ways {
		fmt.Fprintf(&b, " %s: median | longest |", way.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|---|", len(ways)) + "\n")
	for _, service := range all.services {
		fmt.Fprintf(&b, "| `%s` |", service)
		for _, way := range ways {
			median, longest := none, none
			if r, ok := all.of[service][way.name]; ok {
				median, longest = duration(r.median), duration(r.longest)
			}
			fmt.Fprintf(&b, " %s | %s |", median, longest)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// duration writes milliseconds for people.
func duration(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
