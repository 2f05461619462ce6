package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// sample is what one run has shown.
type sample struct {
	rate     float64 // in the unit of the load
	p50, p99 float64 // of a transaction, in milliseconds; 0 if it was not measured
	cpu      float64 // of the proxy per transaction, in microseconds; 0 if there is none
	switches float64 // voluntary context switches of the proxy per transaction
	resident float64 // of the proxy at most, in MB; 0 if it was not measured
	medianOf int     // of how many rounds these are medians; 0 for those of one round
}

// pgbench runs pgbench for the duration of the plan.
func pgbench(ctx context.Context, s *servers, p *plan, by *contender, c *cell) (sample, error) {
	dir, err := os.MkdirTemp(s.dir, "run-")
	if err != nil {
		return sample{}, err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "script.sql")
	if err := os.WriteFile(script, []byte(c.load.scriptFor(by)), 0o644); err != nil {
		return sample{}, err
	}
	args := append([]string{
		"-n", "-h", by.at.host, "-p", by.at.port, "-U", role, "-M", c.mode, "-c", strconv.Itoa(c.clients), "-j", strconv.Itoa(min(2, c.clients)),
		"-T", strconv.Itoa(int(p.duration.Seconds())), "-f", script, "--log", "--log-prefix=" + filepath.Join(dir, "log"), "--sampling-rate=0.1",
	}, append(slices.Clone(c.load.args), role)...)
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "pgbench"), args...)
	cmd.Env = append(os.Environ(), "PGOPTIONS="+by.options, "PGSSLMODE="+by.over.sslmode())
	before, err := by.startUsage()
	if err != nil {
		return sample{}, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return sample{}, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	after, err := by.usage()
	if err != nil {
		return sample{}, err
	}
	return read(string(out), dir, after.since(before))
}

// read makes a sample of what pgbench has said and logged.
func read(out, dir string, used usage) (one sample, err error) {
	n, err := number(out, `number of transactions actually processed: (\d+)`)
	if err != nil {
		return one, err
	}
	if n == 0 {
		return one, fmt.Errorf("there was no transaction, because the connections took too long: give more -seconds\n%s", out)
	}
	if failed, err := number(out, `number of failed transactions: (\d+)`); err != nil || failed > 0 {
		return one, errors.Join(fmt.Errorf("%v transactions have failed:\n%s", failed, out), err)
	}
	if one.rate, err = number(out, `tps = ([0-9.]+)`); err != nil {
		return one, err
	}
	one = one.with(used, n)
	took, err := latencies(dir)
	if err != nil {
		return one, err
	}
	one.p50, one.p99 = took[len(took)/2], took[len(took)*99/100]
	return one, nil
}

// with adds what the proxy has used for n units.
func (one sample) with(used usage, n float64) sample {
	one.cpu = float64((used.user + used.system).Microseconds()) / n
	one.switches, one.resident = float64(used.switches)/n, float64(used.peak)/1000
	return one
}

func number(text, pattern string) (float64, error) {
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("pgbench has said nothing like %s:\n%s", pattern, text)
	}
	return strconv.ParseFloat(found[1], 64)
}

// latencies reads the logs of pgbench, which say in their third column how many microseconds a
// transaction took, and returns the times in milliseconds, the shortest first.
func latencies(dir string) (all []float64, err error) {
	logs, err := filepath.Glob(filepath.Join(dir, "log*"))
	if err != nil {
		return nil, err
	}
	for _, path := range logs {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		for lines := bufio.NewScanner(file); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) < 3 {
				continue // the last line may be incomplete
			}
			took, err := strconv.ParseFloat(fields[2], 64)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("read a log of pgbench: %w", err), file.Close())
			}
			all = append(all, took/1000)
		}
		if err := file.Close(); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, errors.New("pgbench has logged no transaction")
	}
	slices.Sort(all)
	return all, nil
}
