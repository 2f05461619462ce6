// Command mutations plants faults in the gate, one at a time, and requires the
// fast safety tests to fail for each: a gate whose faults no test notices is
// guarded by nobody.
//
//	go run ./scripts/mutations              # all of them
//	go run ./scripts/mutations -run commit  # those whose name matches
//
// A fault is a row of the table in table.go. It is planted in a copy of the tree, of
// which there are two; the caches of go build are shared.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
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
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("read the pattern: %w", err)
	}
	var triers []trier
	for range trees {
		t, err := copyTree(ctx)
		if err != nil {
			return err
		}
		defer t.remove()
		triers = append(triers, t)
	}
	return playAll(ctx, table, wanted, triers, out)
}

// trees is how many copies of the tree there are: one mutant is built while the
// tests of another wait for their servers.
const trees = 2

// trier says what becomes of the tests when a mutation is planted.
type trier interface {
	try(ctx context.Context, m mutation) (outcome, string, error)
}

// outcome is what became of a mutation.
type outcome int

const (
	caught   outcome = iota // a test failed by its own assertion
	survived                // all tests passed
	unfit                   // the mutant does not compile, or a test ended otherwise
)

// playAll tries the mutations that are wanted, and says of each what became of
// it. All of them must be caught.
func playAll(ctx context.Context, all []mutation, wanted *regexp.Regexp, triers []trier, out io.Writer) error {
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
		return errors.New("no mutation has such a name")
	}
	var (
		work    = make(chan mutation, len(due))
		workers sync.WaitGroup
		mu      sync.Mutex // guards out and bad
		bad     int
	)
	for _, m := range due {
		work <- m
	}
	close(work)
	for _, t := range triers {
		workers.Go(func() {
			for m := range work {
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
		return fmt.Errorf("%d of %d mutations were not caught", bad, len(due))
	}
	fmt.Fprintf(out, "mutations: all %d were caught\n", len(due))
	return nil
}

// tell says what became of a mutation, and reports whether it was caught.
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

// distinct requires names that tell the mutations apart.
func distinct(all []mutation) error {
	seen := map[string]bool{}
	for _, m := range all {
		if m.name == "" || seen[m.name] || m.old == m.text || m.tests == "" {
			return fmt.Errorf("mutation %q: it needs a name of its own, tests, and a new text that differs", m.name)
		}
		seen[m.name] = true
	}
	return nil
}
