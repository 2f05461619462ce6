// Command mutations plants faults in the gate, one at a time, and requires the
// fast safety tests to fail for each: a gate whose faults no test notices is
// guarded by nobody.
//
//	go run ./scripts/mutations              # all of them
//	go run ./scripts/mutations -run commit  # those whose name matches
//
// A fault is a row of the table in table.go. It is planted in a copy of the tree;
// the caches of go build are shared.
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
	t, err := copyTree(ctx)
	if err != nil {
		return err
	}
	defer t.remove()
	return playAll(ctx, table, wanted, t, out)
}

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
func playAll(ctx context.Context, all []mutation, wanted *regexp.Regexp, t trier, out io.Writer) error {
	if err := distinct(all); err != nil {
		return err
	}
	tried, bad := 0, 0
	for _, m := range all {
		if !wanted.MatchString(m.name) {
			continue
		}
		tried++
		began := time.Now()
		what, said, err := t.try(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		took := time.Since(began).Round(100 * time.Millisecond)
		switch {
		case err != nil:
			bad++
			fmt.Fprintf(out, "DOES NOT APPLY: %s: %v\n", m.name, err)
		case what == caught:
			fmt.Fprintf(out, "caught (%s): %s: %s\n", took, m.name, said)
		case what == survived:
			bad++
			fmt.Fprintf(out, "SURVIVED (%s): %s\n", took, m.name)
		default:
			bad++
			fmt.Fprintf(out, "PROVES NOTHING (%s): %s\n%s\n", took, m.name, said)
		}
	}
	switch {
	case bad > 0:
		return fmt.Errorf("%d of %d mutations were not caught", bad, tried)
	case tried == 0:
		return errors.New("no mutation has such a name")
	}
	fmt.Fprintf(out, "mutations: all %d were caught\n", tried)
	return nil
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
