package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/table"
)

const shadowAbout = `
Usage: fencepost shadow report [--admin ADDRESS] [--resource NAME] [--database NAME]
                               [--least DURATION] [--json]

Says of each resource in shadow (enforce: shadow) what enforce: on would have refused,
as far as a running Fencepost has seen it, and whether it is safe to switch. Each proxy
knows its own connections, so ask each of them. The counts begin with the first
connection in shadow, and are lost when the proxy ends.

SUPERSEDED counts the workers that were superseded while they were connected. SILENCE is
the longest silence after which a worker continued under its epoch, TIMEOUT the shortest
worker timeout, and FITTING the shortest one that would fit: twice that silence. The
second table has the writes that would have been refused, by SQLSTATE and kind of
statement, when the last one came, and of which workers (and users).

It is safe to switch a resource if it was watched for --least, nothing would have been
refused, and the worker timeout is at least the fitting one.

Exit codes: 0 it is safe to switch all resources that are shown, 1 not yet, or there are
none, or the proxy does not answer.

--json prints the same, with one entry for each worker and user.`

// shadowReport is what is said of one resource. Its JSON is a contract.
type shadowReport struct {
	admin.ShadowView
	// FittingTimeout is the shortest worker timeout, in seconds, that would fit: twice LongestSilence.
	FittingTimeout float64  `json:"fitting_timeout_seconds"`
	Safe           bool     `json:"safe"`
	NotYet         []string `json:"not_yet"` // why it is not safe to switch, and what to do
}

func runShadow(ctx context.Context, t terminal, args []string) error {
	verb := ""
	if len(args) > 0 && args[0] == "report" {
		verb, args = args[0], args[1:]
	}
	fs := flag.NewFlagSet("shadow", flag.ContinueOnError)
	var flags admin.ClientFlags
	flags.Add(fs, t.getenv, config.Default().Admin.Address)
	resource := fs.String("resource", "", "show only the resource of this `name`")
	database := fs.String("database", "", "show only resources of the database of this `name`")
	leastText := fs.String("least", "24h", "`duration` for which a resource must have been watched, such as 12h or 7d")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parseFlags(t, fs, shadowAbout, args, 0); err != nil {
		return err
	}
	if verb == "" {
		return usagef("no action given: use shadow report")
	}
	least, err := parseDays("--least", *leastText)
	if err != nil {
		return err
	}
	var list admin.ShadowList
	if err := ask(ctx, &flags, "/v1/shadow", &list); err != nil {
		return err
	}
	reports, unsafe := []shadowReport{}, 0
	for _, v := range list.Resources {
		if *resource != "" && v.Resource != *resource || *database != "" && v.Database != *database {
			continue
		}
		r := reportOf(v, least, time.Now())
		if !r.Safe {
			unsafe++
		}
		reports = append(reports, r)
	}
	if *asJSON {
		err = printJSON(t.stdout, map[string]any{"proxy": list.Proxy, "resources": reports})
	} else if len(reports) > 0 {
		err = printShadow(t.stdout, list.Proxy, reports)
	}
	switch {
	case err != nil:
		return err
	case len(reports) == 0:
		return errors.New("no such resource is in shadow at this proxy")
	case unsafe > 0:
		return fmt.Errorf("not yet: %d of %d resources are not safe to switch", unsafe, len(reports))
	}
	return nil
}

// reportOf judges a resource, which must have been watched for least.
func reportOf(v admin.ShadowView, least time.Duration, now time.Time) shadowReport {
	r := shadowReport{ShadowView: v, NotYet: []string{}}
	const step = 100 * time.Millisecond
	fitting := (2*table.Seconds(v.LongestSilence) + step - 1).Truncate(step)
	r.FittingTimeout = fitting.Seconds()
	no := func(format string, args ...any) { r.NotYet = append(r.NotYet, fmt.Sprintf(format, args...)) }
	if v.Since == nil {
		no("no connection in shadow has begun at this proxy: let the workers connect again through it")
	} else if seen := now.Sub(*v.Since); seen < least {
		no("seen for %s: watch for at least %s (--least), until the application has done all that it does", max(0, seen).Truncate(time.Second), least)
	}
	r.NotYet = append(r.NotYet, refusals(v.WouldRefuse)...)
	if v.WorkerTimeout != nil && r.FittingTimeout > *v.WorkerTimeout {
		no("a worker was silent for %s and then continued, and its worker timeout is %s: set resources.%s.worker_timeout to at least %s, or have it send something meanwhile (fencepost.heartbeat)",
			table.Left(table.Seconds(v.LongestSilence)), table.Seconds(*v.WorkerTimeout).Round(time.Millisecond), table.Dash(v.Resource), fitting)
	}
	r.Safe = len(r.NotYet) == 0
	return r
}

// shadowReasons say what is refused for a reason, which is a SQLSTATE or fencing.VerbConnection, and what to do.
var shadowReasons = map[string]struct{ what, do string }{
	fencing.StateSuperseded:  {"writes of workers that were superseded", "let a worker stop when another one has taken over; with enforce: on, ZF001 ends its connection"},
	fencing.StateNotLeader:   {"writes of workers that did not lead", "let them write only while they lead: connect with fencepost.campaign=wait, or handle ZF002"},
	fencing.StateStartOver:   {"writes on connections that did not know that their worker leads", "let the application handle ZF003: roll back, read again, and write"},
	fencing.StateNoFence:     {"writes while the fence could not be used", "fencepost status says what is wrong"},
	fencing.StateUnfenceable: {"writes that cannot be fenced", "do not use two-phase commit"},
	fencing.VerbConnection:   {"connections", "the audit log has the reason"},
}

// refusals says what would have been refused, and what to do, in one line for each reason.
func refusals(all []admin.WouldRefuse) (lines []string) {
	for _, g := range grouped(all, func(w admin.WouldRefuse) string {
		if w.Statement == fencing.VerbConnection {
			return w.Statement
		}
		return w.SQLState
	}) {
		why := shadowReasons[g.key]
		lines = append(lines, fmt.Sprintf("%d %s would have been refused (%s), of %s: %s",
			g.count, cmp.Or(why.what, "writes"), g.of.SQLState, table.Names(g.workers), cmp.Or(why.do, "the audit log has the reason")))
	}
	return lines
}

// group is what would have been refused and is shown together.
type group struct {
	key     string
	of      admin.WouldRefuse // one of them
	count   uint64
	last    time.Time
	workers []string
}

// grouped puts together what has the same key, in the order of the keys.
func grouped(all []admin.WouldRefuse, key func(admin.WouldRefuse) string) (groups []*group) {
	byKey := map[string]*group{}
	for _, w := range all {
		g := byKey[key(w)]
		if g == nil {
			g = &group{key: key(w), of: w}
			byKey[g.key] = g
			groups = append(groups, g)
		}
		g.count += w.Count
		if w.Last.After(g.last) {
			g.last = w.Last
		}
		who := "others"
		if w.User != "" {
			who = fmt.Sprintf("%s (%s)", table.Dash(w.Worker), table.Dash(w.User))
		}
		if !slices.Contains(g.workers, who) {
			g.workers = append(g.workers, who)
		}
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.key, b.key) })
	return groups
}

// printShadow prints the tables, and then the verdicts.
func printShadow(out io.Writer, proxy string, reports []shadowReport) error {
	var resources, would [][]string
	for _, r := range reports {
		verdict, since, timeout, refused := "not yet", "", "unlimited", uint64(0)
		if r.Safe {
			verdict = "safe to switch"
		}
		if r.Since != nil {
			since = table.Since(*r.Since)
		}
		if r.WorkerTimeout != nil {
			timeout = table.Seconds(*r.WorkerTimeout).Round(time.Millisecond).String()
		}
		for _, g := range grouped(r.WouldRefuse, func(w admin.WouldRefuse) string { return w.SQLState + " " + w.Statement }) {
			refused += g.count
			would = append(would, []string{r.Database, r.Resource, g.of.SQLState, cmp.Or(g.of.Statement, "(not known)"), strconv.FormatUint(g.count, 10), table.Since(g.last), table.Names(g.workers)})
		}
		resources = append(resources, []string{r.Database, r.Resource, verdict, since, strconv.FormatUint(r.Connections, 10), strconv.FormatUint(r.Superseded, 10),
			strconv.FormatUint(refused, 10), table.Left(table.Seconds(r.LongestSilence)), timeout, table.Seconds(r.FittingTimeout).String()})
	}
	if err := table.Print(out, "DATABASE\tRESOURCE\tVERDICT\tSEEN SINCE\tCONNECTIONS\tSUPERSEDED\tWOULD REFUSE\tSILENCE\tTIMEOUT\tFITTING", resources); err != nil {
		return err
	}
	if len(would) > 0 {
		fmt.Fprintln(out)
		if err := table.Print(out, "DATABASE\tRESOURCE\tSQLSTATE\tSTATEMENT\tCOUNT\tLAST\tWORKERS", would); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "\nproxy %s has seen this: other proxies know their own connections\n", table.Dash(proxy))
	for _, r := range reports {
		for _, line := range r.verdict() {
			if _, err := fmt.Fprintf(out, "%s/%s: %s\n", table.Dash(r.Database), table.Dash(r.Resource), line); err != nil {
				return err
			}
		}
	}
	return nil
}

// verdict says whether it is safe to switch, and why not.
func (r shadowReport) verdict() (lines []string) {
	for _, why := range r.NotYet {
		lines = append(lines, "not yet: "+why)
	}
	if r.Safe {
		lines = append(lines, fmt.Sprintf("safe to switch: set resources.%s.enforce to on, and reload", table.Dash(r.Resource)))
	}
	if r.Superseded == 0 && r.Since != nil {
		lines = append(lines, "no worker was superseded while it was connected here, so what a takeover would refuse is not known: let another worker take the lead once (fencepost handover)")
	}
	return lines
}
