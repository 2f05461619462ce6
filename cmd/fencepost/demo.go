package main

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencepost/fencepost/cmd/fencepost/demo"
)

const demoAbout = `
Usage: fencepost demo [--election postgres|consul|etcd|kubernetes|raft|redis|zookeeper]

Starts a throwaway PostgreSQL and Fencepost, lets two worker processes charge
invoices, freezes the leader in the middle of a charge, and shows what happens
to its write when it resumes, with and without the fence. Needs PostgreSQL's
server programs, and the consul or etcd program for --election consul or etcd.
--election kubernetes starts a kube-apiserver, which needs etcd too, and
--election redis a redis-server. --election raft starts two more proxies.
--election zookeeper needs a program zookeeper that runs a server in the
foreground with the configuration in its argument, as zkServer.sh
start-foreground does.`

func runDemo(ctx context.Context, t terminal, args []string) error {
	var o demo.Options
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.StringVar(&o.Election, "election", "postgres", "the lease service: `postgres`, consul, etcd, kubernetes, raft, redis or zookeeper")
	fs.StringVar(&o.PostgresBin, "postgres", "", "`directory` of initdb and postgres; searched for by default")
	fs.StringVar(&o.Consul, "consul", "", "`path` of the consul program; searched for by default")
	fs.StringVar(&o.Etcd, "etcd", "", "`path` of the etcd program; searched for by default")
	fs.StringVar(&o.APIServer, "kube-apiserver", "", "`path` of the kube-apiserver program; searched for by default")
	fs.StringVar(&o.Redis, "redis-server", "", "`path` of the redis-server program; searched for by default")
	fs.StringVar(&o.ZooKeeper, "zookeeper", "", "`path` of the zookeeper program; searched for by default")
	fs.BoolVar(&o.Keep, "keep", false, "keep the logs and the data")
	if err := parseFlags(t, fs, demoAbout, args, 0); err != nil {
		return err
	}
	if !slices.Contains(demo.Elections, o.Election) {
		return usagef("--election is %q: it must be one of %s", o.Election, strings.Join(demo.Elections, ", "))
	}
	o.Out, o.Color = t.stdout, isTerminal(t)
	return demo.Run(ctx, o)
}

// isTerminal reports whether t's output supports colours.
func isTerminal(t terminal) bool {
	out := t.stdout
	if o, ok := out.(*results); ok {
		out = o.to
	}
	f, ok := out.(*os.File)
	if !ok || t.getenv("NO_COLOR") != "" || t.getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func runDemoWorker(ctx context.Context, t terminal, args []string) error {
	var o demo.WorkerOptions
	fs := flag.NewFlagSet("demo-worker", flag.ContinueOnError)
	fs.StringVar(&o.Name, "name", "worker", "name of the worker in its events")
	fs.StringVar(&o.Lease, "lease", "", "`DSN` through Fencepost")
	fs.StringVar(&o.Work, "work", "", "`DSN` for the charges; by default the same connection")
	fs.DurationVar(&o.Pause, "pause", 300*time.Millisecond, "how long a charge takes")
	if err := parseFlags(t, fs, "Usage: fencepost demo-worker --lease DSN\n\nOne worker of the demo.", args, 0); err != nil {
		return err
	}
	if o.Lease == "" {
		return usagef("--lease is required")
	}
	o.Out, o.Log = t.stdout, t.stderr
	return demo.RunWorker(ctx, o)
}
