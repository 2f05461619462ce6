// Command mutations plants faults in the fence, one at a time, and requires fast
// tests to fail for each of them. A fault that no test notices shows a gap in
// the tests.
//
//	go run ./scripts/mutations              # all of them
//	go run ./scripts/mutations -run commit  # those whose name matches
//	go run ./scripts/mutations -limit 10m   # in random order, none that would begin later than that
//
// A fault is a row of the table in table.go. It is planted in one of several copies of
// the tree; they share the caches of go build.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutations", flag.ContinueOnError)
	pattern := flags.String("run", "", "plant only those whose name matches this `pattern`")
	limit := flags.Duration("limit", 0, "plant them in random order, and none after this `time`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("parse the pattern: %w", err)
	}
	var triers []trier
	for range trees {
		t, err := copyTree(ctx)
		if err != nil {
			return err
		}
		defer t.remove()
		if len(triers) == 0 { // the others find what this has compiled
			if _, out, err := t.build(ctx, safetyTests); err != nil {
				return fmt.Errorf("build the tests: %w\n%s", err, out)
			}
		}
		triers = append(triers, t)
	}
	all := slices.Clone(table)
	if *limit > 0 {
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return runAll(ctx, all, wanted, *limit, triers, out)
}

// trees is the number of copies of the tree: mutants are built while the tests of others
// wait for their servers.
const trees = 4

// trier plants a mutation and runs its tests.
type trier interface {
	try(ctx context.Context, m mutation) (outcome, string, error)
}

// outcome is the result of a mutation.
type outcome int

const (
	caught   outcome = iota // a test failed with its own assertion
	survived                // all tests passed
	unfit                   // the mutant does not compile, or a test ended in another way
)

// runAll tries the wanted mutations and prints the result of each. All of them must be
// caught. If there is a limit, those whose turn has not come by then are left out, but for the first.
func runAll(ctx context.Context, all []mutation, wanted *regexp.Regexp, limit time.Duration, triers []trier, out io.Writer) error {
	if err := distinct(all); err != nil {
		return err
	}
	var due []mutation
	for _, m := range all {
		if wanted.MatchString(m.name) {
			due = append(due, m)
		}
	}
	if len(due) == 0 {
		return errors.New("no mutation matches the pattern")
	}
	var (
		workers sync.WaitGroup
		mu      sync.Mutex // guards what follows, and out
		bad     int
		tried   int
		start   = time.Now()
	)
	next := func() (m mutation, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if tried == len(due) || limit > 0 && tried > 0 && time.Since(start) > limit {
			return mutation{}, false
		}
		tried++
		return due[tried-1], true
	}
	for _, t := range triers {
		workers.Go(func() {
			for m, ok := next(); ok; m, ok = next() {
				began := time.Now()
				what, said, err := t.try(ctx, m)
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				if !tell(out, m, what, said, err, time.Since(began).Round(100*time.Millisecond)) {
					bad++
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case bad > 0:
		return fmt.Errorf("%d of %d mutations were not caught", bad, tried)
	case tried < len(due):
		fmt.Fprintf(out, "mutations: %d of %d were tried within %s, and all of these were caught\n", tried, len(due), limit)
	default:
		fmt.Fprintf(out, "mutations: all %d were caught\n", tried)
	}
	return nil
}

// tell prints the result of a mutation, and reports whether it was caught.
func tell(out io.Writer, m mutation, what outcome, said string, err error, took time.Duration) bool {
	switch {
	case err != nil:
		fmt.Fprintf(out, "DOES NOT APPLY: %s: %v\n", m.name, err)
	case what == caught:
		fmt.Fprintf(out, "caught (%s): %s: %s\n", took, m.name, said)
		return true
	case what == survived:
		fmt.Fprintf(out, "SURVIVED (%s): %s\n", took, m.name)
	default:
		fmt.Fprintf(out, "PROVES NOTHING (%s): %s\n%s\n", took, m.name, said)
	}
	return false
}

// distinct returns an error unless the mutations are complete and have distinct names.
func distinct(all []mutation) error {
	seen := map[string]bool{}
	for _, m := range all {
		if m.name == "" || seen[m.name] || m.old == m.text || m.tests == "" {
			return fmt.Errorf("mutation %q needs a unique name, tests, and a new text that differs from the old one", m.name)
		}
		seen[m.name] = true
	}
	return nil
}
