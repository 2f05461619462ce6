package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// origin is when, where and of what a cell was measured.
type origin struct {
	date    string
	commit  string
	seconds int // that a run took at least
	machine string
}

// newOrigin is that of what is measured now. A commit is marked if something but the docs differs from it.
func newOrigin(ctx context.Context, p *plan) (origin, error) {
	commit, err := exec.CommandContext(ctx, "git", "rev-parse", "--short", "HEAD").Output()
	if err != nil && p.write {
		return origin{}, fmt.Errorf("ask git for the commit: %w", err)
	}
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs").Output()
	if err != nil && p.write {
		return origin{}, fmt.Errorf("ask git for changes: %w", err)
	}
	name := cmp.Or(strings.TrimSpace(string(commit)), "unknown")
	if len(changes) > 0 {
		name += " with changes"
	}
	machine := fmt.Sprintf("%d processors (%s)", runtime.NumCPU(), processor())
	return origin{time.Now().UTC().Format(time.DateOnly), name, int(p.duration.Seconds()), machine}, nil
}

// processor is the name of the machine's processor, as far as the system says it.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// columns are those of the file with all rounds. A round is a number, or says of how many rounds the row has
// the medians. A figure that was not measured is empty.
var columns = []string{"load", "mode", "clients", "contender", "round", "rate", "p50_ms", "p99_ms", "cpu_us", "waits", "peak_mb", "date", "commit", "seconds", "machine"}

const medianOf = "median of "

// figures are those of a sample, in the order of their columns.
func (one *sample) figures() []*float64 {
	return []*float64{&one.rate, &one.p50, &one.p99, &one.cpu, &one.switches, &one.resident}
}

// csv writes all rounds.
func (all *results) csv() ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	err := w.Write(columns)
	for _, c := range all.cells {
		for _, name := range c.names {
			for i, one := range c.runs[name] {
				round := strconv.Itoa(i + 1)
				if one.medianOf > 0 {
					round = medianOf + strconv.Itoa(one.medianOf)
				}
				row := []string{c.load.name, c.mode, strconv.Itoa(c.clients), name, round}
				for _, f := range one.figures() {
					row = append(row, figure("%.6g", *f, ""))
				}
				err = errors.Join(err, w.Write(append(row, c.from.date, c.from.commit, strconv.Itoa(c.from.seconds), c.from.machine)))
			}
		}
	}
	w.Flush()
	return b.Bytes(), errors.Join(err, w.Error())
}

// readCSV reads what csv has written.
func readCSV(from io.Reader) (*results, error) {
	rows, err := csv.NewReader(from).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 || !slices.Equal(rows[0], columns) {
		return nil, fmt.Errorf("the columns are not %s", strings.Join(columns, ","))
	}
	all := &results{}
	for i, row := range rows[1:] {
		if err := all.read(row); err != nil {
			return nil, fmt.Errorf("row %d: %w", i+2, err)
		}
	}
	return all, nil
}

// read adds one row, whose cell is the last one or a new one.
func (all *results) read(row []string) error {
	at := func(column string) string { return row[slices.Index(columns, column)] }
	clients, clientsErr := strconv.Atoi(at("clients"))
	seconds, secondsErr := strconv.Atoi(at("seconds"))
	round, isMedian := strings.CutPrefix(at("round"), medianOf)
	n, roundErr := strconv.Atoi(round)
	if err := errors.Join(clientsErr, secondsErr, roundErr); err != nil {
		return err
	}
	c := &cell{load: loadNamed(at("load")), mode: at("mode"), clients: clients, runs: map[string][]sample{}, from: origin{at("date"), at("commit"), seconds, at("machine")}}
	if c.load == nil {
		return fmt.Errorf("there is no load %q", at("load"))
	}
	if known := slices.IndexFunc(all.cells, c.is); known >= 0 {
		c = all.cells[known]
	} else {
		all.cells = append(all.cells, c)
	}
	var one sample
	if isMedian {
		one.medianOf = n
	}
	for i, f := range one.figures() {
		text := row[slices.Index(columns, "rate")+i]
		if text == "" {
			continue
		}
		var err error
		if *f, err = strconv.ParseFloat(text, 64); err != nil {
			return err
		}
	}
	c.add(at("contender"), one)
	return nil
}
