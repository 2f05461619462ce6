package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

const explainAbout = `
Usage: fencepost explain SQL
       fencepost explain -        (reads standard input)

Says, for each statement of the text, what Fencepost takes it for, and where the
check of its transaction goes. It connects to nothing. Whether a statement is
taken for a read matters only on connections that do not lead: a leader's
transactions are all checked.`

func runExplain(_ context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("explain", flag.ContinueOnError)
	if err := parseFlags(t, fs, explainAbout, args, 1); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usagef("give the SQL text, or - to read standard input")
	}
	sql := fs.Arg(0)
	if sql == "-" {
		text, err := io.ReadAll(t.stdin)
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		sql = string(text)
	}
	statements := fencing.Explain(sql)
	if len(statements) == 0 {
		fmt.Fprintln(t.stdout, "no statement: nothing is checked")
	}
	for i, s := range statements {
		if i > 0 {
			fmt.Fprintln(t.stdout)
		}
		read := "write"
		if s.Read {
			read = "read"
		}
		fmt.Fprintf(t.stdout, "%s\n  kind   %s\n  taken  for a %s", strings.TrimSpace(s.SQL), s.Kind, read)
		if s.Reason != "" {
			fmt.Fprintf(t.stdout, ": %s", s.Reason)
		}
		fmt.Fprintf(t.stdout, "\n  check  %s\n", s.Check)
	}
	return nil
}
