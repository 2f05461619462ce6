package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
)

const waitAbout = `
Usage: fencepost wait [--admin ADDRESS] [--timeout DURATION]

Waits until a running Fencepost can serve, as fencepost status --ready says once: for
scripts, and for containers that must not start before it. Says on standard error what
it waits for, whenever that changes.

Exit codes: 0 when the proxy is ready; 1 if it is not after --timeout, or the command is
interrupted; 2 if the command line is wrong.`

// waitInterval is the time between two questions. A proxy reuses its answer for a second.
const waitInterval = 500 * time.Millisecond

func runWait(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("wait", flag.ContinueOnError)
	var flags admin.ClientFlags
	flags.Add(fs, t.getenv, config.Default().Admin.Address)
	timeout := fs.Duration("timeout", time.Minute, "`duration` after which to give up")
	if err := parseFlags(t, fs, waitAbout, args, 0); err != nil {
		return err
	}
	if *timeout <= 0 {
		return usagef("--timeout is %s: it must be positive", *timeout)
	}
	proxy, err := flags.Client()
	if err != nil {
		return usageError{err.Error()}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("gave up after %s", *timeout))
	defer cancel()
	for said := ""; ; {
		var page bytes.Buffer
		err := printReadiness(ctx, &page, proxy)
		if err == nil {
			_, err = t.stdout.Write(page.Bytes())
			return err
		}
		if ctx.Err() == nil || said == "" { // at the end, it says what was so before
			why := strings.ReplaceAll(page.String(), "\n", "; ") + err.Error()
			if why != said {
				fmt.Fprintf(t.stderr, "waiting: %s\n", why)
			}
			said = why
		}
		select {
		case <-time.After(waitInterval):
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), said)
		}
	}
}
