package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/recorded"
	"github.com/fencepost/fencepost/internal/table"
)

const statusAbout = `
Usage: fencepost status [--admin ADDRESS | --dsn DSN] [--resource NAME] [--json | --watch]
       fencepost status --ready [--admin ADDRESS]

Shows resources, leaders and epochs. By default it queries a running Fencepost,
which knows the leases and the refused writes of the resources that its workers
use, and what its databases know of the others, and prints first what is wrong with it. If it
shows no resource and cannot serve, the exit code is 1. With --dsn it reads one database, which
contains the grants of all proxies, and what they have said of their workers.

STATE is led (a worker leads, and its lease is confirmed), idle (nobody leads, and a
worker asks for the lead with its next write), paused (by an operator), handover (to a
worker that has not taken the lead yet), electing (somebody has the lease or waits for
it), blocked (a fault, a transaction or an order keeps the workers from leading), absent
(no worker is connected that could lead) or unknown (the lease cannot be read). SILENT
is how long the leader has been silent, of how long it may be, if it is connected to
that Fencepost. STALE counts the writes of superseded workers that it has refused.
A line below the table names each backend that a takeover of a worker of that Fencepost
waits for, and says when it is ended; another one each resource whose name is close to
that of another one, as billing and biling: they may be meant to be one.

--json prints the resources as /v1/resources returns them, or as much of that as the
database knows.
--watch shows the table again every two seconds, until it is interrupted. --ready
asks whether the proxy can serve: it prints what is wrong and what to do, and exits
with 1 if it cannot.`

// ask asks the proxy of the flags for a page of its admin address, and reads the answer into a value.
func ask(ctx context.Context, flags *admin.ClientFlags, path string, into any) error {
	server, err := flags.Client()
	if err != nil {
		return usageError{err.Error()}
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return server.Ask(ctx, http.MethodGet, path, into, http.StatusOK)
}

// statusTimeout bounds one query for the status.
const statusTimeout = 10 * time.Second

// statusInterval is how often --watch asks.
const statusInterval = 2 * time.Second

// statusOptions are the flags of status.
type statusOptions struct {
	admin              *admin.Client
	dsn, resource      string
	json, watch, ready bool
}

func runStatus(ctx context.Context, t terminal, args []string) error {
	var o statusOptions
	fs := flag.NewFlagSet("status", flag.ContinueOnError)
	var flags admin.ClientFlags
	flags.Add(fs, t.getenv, config.Default().Admin.Address)
	fs.StringVar(&o.dsn, "dsn", "", "`DSN` of a database, to read its fence table instead")
	fs.StringVar(&o.resource, "resource", "", "show only the resource of this `name`")
	fs.BoolVar(&o.json, "json", false, "print JSON")
	fs.BoolVar(&o.watch, "watch", false, "show the table again every two seconds")
	fs.BoolVar(&o.ready, "ready", false, "ask whether the proxy can serve, and exit with 1 if not")
	if err := parseFlags(t, fs, statusAbout, args, 0); err != nil {
		return err
	}
	var err error
	if o.admin, err = flags.Client(); err != nil {
		return usageError{err.Error()}
	}
	switch {
	case o.json && o.watch:
		return usagef("--json and --watch are mutually exclusive")
	case o.ready && (o.dsn != "" || o.json || o.watch || o.resource != ""):
		return usagef("--ready takes no other flag but --admin and those of its connection")
	case o.ready:
		return printReadiness(ctx, t.stdout, o.admin)
	case o.watch:
		return o.follow(ctx, t.stdout)
	default:
		return o.print(ctx, t.stdout)
	}
}

// follow prints the status until ctx ends. A query that fails is shown in place of the
// table, because it may succeed the next time.
func (o statusOptions) follow(ctx context.Context, out io.Writer) error {
	for ctx.Err() == nil {
		var page bytes.Buffer
		if err := o.print(ctx, &page); err != nil {
			fmt.Fprintln(&page, err)
		}
		// Clear the screen, and begin at its upper left corner.
		if _, err := fmt.Fprintf(out, "\x1b[H\x1b[2J%s  every %s\n\n%s", time.Now().Format(time.TimeOnly), statusInterval, page.Bytes()); err != nil {
			return err
		}
		select {
		case <-time.After(statusInterval):
		case <-ctx.Done():
		}
	}
	return nil
}

func (o statusOptions) print(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	look := func(ctx context.Context) ([]table.Resource, error) { return statusFromAdmin(ctx, o.admin) }
	if o.dsn != "" {
		look = func(ctx context.Context) ([]table.Resource, error) { return statusFromDatabase(ctx, o.dsn) }
	}
	views, err := look(ctx)
	if err != nil {
		return err
	}
	table.FindNear(views)
	if o.resource != "" {
		views = slices.DeleteFunc(views, func(v table.Resource) bool { return v.Resource != o.resource })
		if len(views) == 0 {
			return fmt.Errorf("no resource is named %q there", o.resource)
		}
	}
	if o.json {
		return printJSON(out, map[string][]table.Resource{"resources": views})
	}
	if o.dsn != "" {
		return printStatus(out, views, "no resources yet: no client has connected with fencepost.resource")
	}
	ready, err := o.printFaults(ctx, out)
	if err != nil {
		return err
	}
	err = printStatus(out, views, "no resource yet: no worker has connected with fencepost.resource, or this proxy cannot read its databases")
	if err == nil && len(views) == 0 && !ready {
		return notReady(o.admin)
	}
	return err
}

// printFaults prints what is wrong with the proxy, and reports whether it is ready.
func (o statusOptions) printFaults(ctx context.Context, out io.Writer) (ready bool, err error) {
	r, err := readinessOf(ctx, o.admin)
	if err != nil {
		return false, err
	}
	for _, l := range table.FaultLines(r) {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return false, err
		}
	}
	return r.Ready, nil
}

func printJSON(out io.Writer, what any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(what)
}

// readinessOf asks a proxy whether it is ready.
func readinessOf(ctx context.Context, proxy *admin.Client) (ready admin.Readiness, err error) {
	err = proxy.Ask(ctx, http.MethodGet, "/readyz", &ready, http.StatusOK, http.StatusServiceUnavailable)
	return ready, err
}

// printReadiness prints what keeps a proxy from serving, and returns an error if it is not
// ready.
func printReadiness(ctx context.Context, out io.Writer, proxy *admin.Client) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	ready, err := readinessOf(ctx, proxy)
	if err != nil {
		return err
	}
	var lines []string
	add := func(what, text string) {
		if text != "" && text != "ok" {
			lines = append(lines, what+": "+table.Dash(text))
		}
	}
	add("upstream", ready.Upstream)
	for _, h := range ready.Hosts {
		text := h.Address + " " + h.Is
		if h.Since != nil {
			text += ", since " + h.Since.UTC().Format(time.RFC3339)
		}
		add("host", text)
	}
	add("election", ready.Election)
	lines = append(lines, table.FaultLines(ready)...)
	if ready.Ready {
		lines = append([]string{"ready"}, lines...)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return err
		}
	}
	if !ready.Ready {
		return notReady(proxy)
	}
	return nil
}

func notReady(proxy *admin.Client) error {
	return fmt.Errorf("the proxy at %s is not ready", proxy.Address)
}

// printStatus prints the table, or none if there is no resource.
func printStatus(out io.Writer, all []table.Resource, none string) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	cells := make([][]string, len(all))
	for i, r := range all {
		cells[i] = r.Cells()
	}
	if err := table.Print(out, table.ResourceHeads, cells); err != nil {
		return err
	}
	for _, r := range all {
		for _, note := range r.Notes() {
			if _, err := fmt.Fprintf(out, "%s/%s: %s\n", table.Dash(r.Database), table.Dash(r.Resource), note); err != nil {
				return err
			}
		}
	}
	return nil
}

// statusFromAdmin queries a running proxy.
func statusFromAdmin(ctx context.Context, proxy *admin.Client) ([]table.Resource, error) {
	var list admin.ResourceList
	if err := proxy.Ask(ctx, http.MethodGet, "/v1/resources", &list, http.StatusOK); err != nil {
		return nil, err
	}
	views := make([]table.Resource, 0, len(list.Resources))
	for _, v := range list.Resources {
		views = append(views, table.Resource{ResourceView: v})
	}
	return views, nil
}

// statusFromDatabase reads the fence table.
func statusFromDatabase(ctx context.Context, dsn string) ([]table.Resource, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	all, err := recorded.Status(ctx, conn)
	if err != nil {
		return nil, err
	}
	views := make([]table.Resource, 0, len(all))
	for _, r := range all {
		views = append(views, table.Resource{ResourceView: r.ResourceView, OfDatabase: true, Lost: r.Lost})
	}
	return views, nil
}
