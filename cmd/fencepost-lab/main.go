// Command fencepost-lab shows what Fencepost is for, on throwaway servers: a demo in a terminal, and a playground on a
// web page. It is no part of an installation.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost-lab/demo"
	"github.com/fencepost/fencepost/cmd/fencepost-lab/playground"
	"github.com/fencepost/fencepost/fencing"
)

const usage = `Usage:
  fencepost-lab demo [--election postgres|consul|etcd|kubernetes|raft|redis|zookeeper]
      shows a frozen leader being fenced
  fencepost-lab playground [--listen ADDRESS]
      shows on a web page how workers compete, fail and are fenced
  fencepost-lab demo-worker --lease DSN
      is one worker of the demo

Run fencepost-lab COMMAND --help for the usage of a command.
Exit codes: 0 success, 1 failure, 2 wrong command line.
`

const demoAbout = `
Usage: fencepost-lab demo [--election postgres|consul|etcd|kubernetes|raft|redis|zookeeper]

Starts a throwaway PostgreSQL and Fencepost, lets two worker processes charge
invoices, freezes the leader in the middle of a charge, and shows what happens
to its write when it resumes, with and without the fence. Needs PostgreSQL's
server programs, and the consul or etcd program for --election consul or etcd.
--election kubernetes starts a kube-apiserver, which needs etcd too, and
--election redis a redis-server. --election raft starts two more proxies.
--election zookeeper needs a program zookeeper that runs a server in the
foreground with the configuration in its argument, as zkServer.sh
start-foreground does.
`

const playgroundAbout = `
Usage: fencepost-lab playground [--listen ADDRESS] [--postgres DIRECTORY]

Starts a throwaway PostgreSQL, and serves a web page on which workers compete for
a lease and are frozen, killed and cut off at your choice, and on which two leaders
of a partitioned cluster write. Ctrl-C, or the end of the terminal, ends it and discards
everything. Needs PostgreSQL's server programs.

The page can start and end processes of the playground, and nothing else. Only
programs on this machine reach it, unless --listen names another address.
`

// usageError is a mistake in the command line.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the default action is restored, so that a second one ends a process that hangs.
	context.AfterFunc(ctx, stop)
	err := run(ctx, os.Args[1:])
	stop()
	var wrong usageError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return
	case errors.As(err, &wrong):
		fmt.Fprintf(os.Stderr, "fencepost-lab: %v\n\n%s", err, usage)
		os.Exit(2)
	}
	fmt.Fprintf(os.Stderr, "fencepost-lab: %v\n", err)
	os.Exit(1)
}

// run runs one command.
func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return usageError{"a command is missing"}
	}
	switch args[0] {
	case "demo":
		return runDemo(ctx, args[1:])
	case "demo-worker":
		return runDemoWorker(ctx, args[1:])
	case "playground":
		return runPlayground(ctx, args[1:])
	case "playground-worker": // which only the playground starts
		return runPlaygroundWorker(ctx, args[1:])
	case "help", "-h", "-help", "--help":
		_, err := os.Stdout.WriteString(usage)
		return err
	}
	return usageError{fmt.Sprintf("unknown command %q", args[0])}
}

// parse parses the flags of a command, which has no other arguments.
func parse(fs *flag.FlagSet, about string, args []string) error {
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), strings.TrimSpace(about))
		fmt.Fprint(fs.Output(), "\nFlags:\n")
		fs.PrintDefaults()
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return usageError{err.Error()}
	case fs.NArg() > 0:
		return usageError{fmt.Sprintf("unexpected argument %q", fs.Arg(0))}
	}
	return nil
}

func runDemo(ctx context.Context, args []string) (err error) {
	var o demo.Options
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.StringVar(&o.Election, "election", "postgres", "the lease service: `postgres`, consul, etcd, kubernetes, raft, redis or zookeeper")
	fs.StringVar(&o.Program, "fencepost", "", "`path` of the fencepost program; by default the one beside this program, or in PATH")
	fs.StringVar(&o.PostgresBin, "postgres", "", "`directory` of initdb and postgres; searched for by default")
	fs.StringVar(&o.Consul, "consul", "", "`path` of the consul program; searched for by default")
	fs.StringVar(&o.Etcd, "etcd", "", "`path` of the etcd program; searched for by default")
	fs.StringVar(&o.APIServer, "kube-apiserver", "", "`path` of the kube-apiserver program; searched for by default")
	fs.StringVar(&o.Redis, "redis-server", "", "`path` of the redis-server program; searched for by default")
	fs.StringVar(&o.ZooKeeper, "zookeeper", "", "`path` of the zookeeper program; searched for by default")
	fs.BoolVar(&o.Keep, "keep", false, "keep the logs and the data")
	if err := parse(fs, demoAbout, args); err != nil {
		return err
	}
	if !slices.Contains(demo.Elections, o.Election) {
		return usageError{fmt.Sprintf("--election is %q: it must be one of %s", o.Election, strings.Join(demo.Elections, ", "))}
	}
	if o.Self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	if o.Program == "" {
		if o.Program, err = findFencepost(o.Self); err != nil {
			return err
		}
	}
	o.Out, o.Color = os.Stdout, isTerminal(os.Stdout)
	return demo.Run(ctx, o)
}

// findFencepost returns the path of the fencepost program beside this one, or else in PATH.
func findFencepost(self string) (string, error) {
	beside := filepath.Join(filepath.Dir(self), "fencepost")
	if _, err := os.Stat(beside); err == nil {
		return beside, nil
	}
	path, err := exec.LookPath("fencepost")
	if err != nil {
		return "", fmt.Errorf("find the fencepost program, beside this one or in PATH (or set --fencepost): %w", err)
	}
	return path, nil
}

// isTerminal reports whether out supports colours.
func isTerminal(out *os.File) bool {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := out.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func runDemoWorker(ctx context.Context, args []string) error {
	var o demo.WorkerOptions
	fs := flag.NewFlagSet("demo-worker", flag.ContinueOnError)
	fs.StringVar(&o.Name, "name", "worker", "`name` of the worker in its events")
	fs.StringVar(&o.Lease, "lease", "", "`DSN` through Fencepost")
	fs.StringVar(&o.Work, "work", "", "`DSN` for the charges; by default the same connection")
	fs.DurationVar(&o.Pause, "pause", 300*time.Millisecond, "how long a charge takes")
	if err := parse(fs, "Usage: fencepost-lab demo-worker --lease DSN\n\nOne worker of the demo.", args); err != nil {
		return err
	}
	if o.Lease == "" {
		return usageError{"--lease is required"}
	}
	o.Out, o.Log = os.Stdout, os.Stderr
	return demo.RunWorker(ctx, o)
}

func runPlayground(ctx context.Context, args []string) error {
	o := playground.Options{Out: os.Stdout, StartProxy: startProxy}
	fs := flag.NewFlagSet("playground", flag.ContinueOnError)
	fs.StringVar(&o.Listen, "listen", "127.0.0.1:6480", "`address` of the web page")
	fs.StringVar(&o.PostgresBin, "postgres", "", "`directory` of initdb and postgres; searched for by default")
	if err := parse(fs, playgroundAbout, args); err != nil {
		return err
	}
	if !fencing.Checking {
		return errors.New("this build fences nothing (tag fencepost_unfenced)")
	}
	// A terminal that closes sends SIGHUP, which the proxies in this process take as an order to reload.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP)
	defer stop()
	return playground.Run(ctx, o)
}

func runPlaygroundWorker(ctx context.Context, args []string) error {
	o := playground.WorkerOptions{Out: os.Stdout}
	fs := flag.NewFlagSet("playground-worker", flag.ContinueOnError)
	fs.StringVar(&o.Name, "name", "worker", "`name` of the worker")
	fs.StringVar(&o.DSN, "dsn", "", "`DSN` through Fencepost")
	fs.StringVar(&o.Resource, "resource", "", "`resource` that it writes")
	fs.DurationVar(&o.Think, "think", 300*time.Millisecond, "how long it thinks between reading and writing")
	fs.DurationVar(&o.Rest, "rest", 500*time.Millisecond, "how long it rests after a row")
	fs.BoolVar(&o.Insist, "insist", false, "write whatever Fencepost says, because another elector has elected it")
	fs.DurationVar(&o.Again, "again", 0, "with --insist: how long it only observes after it was superseded")
	if err := parse(fs, "Usage: fencepost-lab playground-worker --dsn DSN --resource RESOURCE\n\nOne worker of the playground.", args); err != nil {
		return err
	}
	if o.DSN == "" || o.Resource == "" {
		return usageError{"--dsn and --resource are required"}
	}
	return playground.RunWorker(ctx, o)
}
