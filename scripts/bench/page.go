package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

const (
	page    = "docs/benchmarks.md"
	drawing = "docs/benchmarks.svg"
	// begin and end enclose what is written into the page.
	begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"
)

// writePage puts what was measured into docs/benchmarks.md, and draws its ratios.
func (all *results) writePage(postgres, args string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	commit, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("ask git for the commit: %w", err)
	}
	how := fmt.Sprintf("Medians of %d rounds of %v, on %s, with %d processors (%s), PostgreSQL %s and commit %s: `go run ./scripts/bench %s`.",
		all.plan.rounds, all.plan.duration, time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), processor(), postgres, strings.TrimSpace(string(commit)), args)
	written, err := insert(string(text), how+"\n\n"+all.table())
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(page, []byte(written), 0o644), os.WriteFile(drawing, []byte(all.picture()), 0o644))
}

// insert replaces what stands between the marks of the page.
func insert(page, text string) (string, error) {
	before, rest, found := strings.Cut(page, begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		return "", errors.New("the page has no place for what was measured")
	}
	return before + begin + text + end + after, nil
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
