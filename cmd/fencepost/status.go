package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/recorded"
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

// statusRow is one line of the table. An empty field is not known from that source.
type statusRow struct {
	database, resource, state, leader, proxy, epoch, since, leaseLeft, silent, stale string

	refused   uint64   // writes, without the stale ones
	alarms    int      // false ones
	guards    int      // how many tables the resource guards
	lost      []string // those that are recorded as guarded, and are not
	shadow    bool     // nothing is refused
	discards  bool     // its stale writes are discarded
	discarded uint64   // how many were
	tables    bool     // only its guards refuse those who do not lead
	inShadow  int      // connections that are in shadow
	inTables  int      // connections on which only its guards refuse those who do not lead
	reason    string   // why the state is unknown or blocked
	blocked   []string // what blocks a takeover, or would block one
	awaits    []string // the backends that a takeover waits for, and when they are ended
	orders    []string // operators' orders that keep workers from leading
	waiting   []string // workers that campaign and do not lead
	near      []string // other resources whose names are close to this one's
}

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
	look := func(ctx context.Context) ([]statusView, error) { return statusFromAdmin(ctx, o.admin) }
	if o.dsn != "" {
		look = func(ctx context.Context) ([]statusView, error) { return statusFromDatabase(ctx, o.dsn) }
	}
	views, err := look(ctx)
	if err != nil {
		return err
	}
	findNear(views)
	if o.resource != "" {
		views = slices.DeleteFunc(views, func(v statusView) bool { return v.Resource != o.resource })
		if len(views) == 0 {
			return fmt.Errorf("no resource is named %q there", o.resource)
		}
	}
	if o.json {
		return printJSON(out, map[string][]statusView{"resources": views})
	}
	rows := make([]statusRow, len(views))
	for i, v := range views {
		rows[i] = v.row()
	}
	if o.dsn != "" {
		return printStatus(out, rows, "no resources yet: no client has connected with fencepost.resource")
	}
	ready, err := o.printFaults(ctx, out)
	if err != nil {
		return err
	}
	err = printStatus(out, rows, "no resource yet: no worker has connected with fencepost.resource, or this proxy cannot read its databases")
	if err == nil && len(rows) == 0 && !ready {
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
	for _, l := range troubleLines(r) {
		if _, err := fmt.Fprintln(out, l); err != nil {
			return false, err
		}
	}
	return r.Ready, nil
}

// statusView is what is known of a resource. What only a proxy knows is not set if
// it comes from a database.
type statusView struct {
	admin.ResourceView
	ofDatabase bool
	lost       []string // tables that are recorded as guarded, and are not, if the role may see them
	near       []string // other resources of the database whose names are close to this one's
}

// findNear finds the resources whose names are close to those of others of their database. Those that nobody ever led do not
// count, nor do two that the configuration of the proxy names.
func findNear(views []statusView) {
	for i := range views {
		for j := range i {
			a, b := &views[j], &views[i]
			if a.Epoch > 0 && b.Epoch > 0 && a.Database == b.Database && !(a.Configured && b.Configured) && config.Near(a.Resource, b.Resource) {
				a.near, b.near = append(a.near, b.Resource), append(b.near, a.Resource)
			}
		}
	}
}

// onlyOfProxies are the fields that a database does not know.
var onlyOfProxies = []string{"here", "configured", "refused_writes", "discarded_writes", "stale_writes", "leaderless_seconds", "false_alarms", "on_stale", "enforce", "fence", "workers"}

// MarshalJSON implements json.Marshaler.
func (v statusView) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(v.ResourceView)
	if err != nil || !v.ofDatabase {
		return text, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	for _, name := range onlyOfProxies {
		delete(fields, name)
	}
	if len(v.lost) > 0 {
		if fields["lost_guards"], err = json.Marshal(v.lost); err != nil {
			return nil, err
		}
	}
	return json.Marshal(fields)
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

// troubleLines says what is wrong with a proxy, and what to do.
func troubleLines(r admin.Readiness) (lines []string) {
	add := func(what, text string) {
		if text != "" {
			lines = append(lines, what+": "+dash(text))
		}
	}
	for _, f := range r.Faults {
		add(string(f.Kind), f.Problem)
		add("remedy", f.Remedy)
	}
	for _, w := range r.Warnings {
		add("warning", w)
	}
	if len(r.RestartPending) > 0 {
		lines = append(lines, "restart pending: changed in the configuration, and applied by a restart only: "+names(r.RestartPending))
	}
	if r.ReloadFailed != nil {
		lines = append(lines, "reload failed: at "+r.ReloadFailed.Format(time.RFC3339)+", "+reloadFailed+": fencepost reload says what is wrong")
	}
	if r.Draining {
		lines = append(lines, "draining: the proxy is shutting down")
	}
	return lines
}

// reloadFailed is what has happened if Readiness.ReloadFailed is set.
const reloadFailed = "the configuration, or a file of TLS, could not be used, and the earlier one holds"

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
			lines = append(lines, what+": "+dash(text))
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
	lines = append(lines, troubleLines(ready)...)
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
func printStatus(out io.Writer, rows []statusRow, none string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, none)
		return err
	}
	cells := make([][]string, len(rows))
	for i, r := range rows {
		cells[i] = r.cells()
	}
	if err := printTable(out, statusHeads, cells); err != nil {
		return err
	}
	for _, r := range rows {
		for _, note := range r.notes() {
			if _, err := fmt.Fprintf(out, "%s/%s: %s\n", dash(r.database), dash(r.resource), note); err != nil {
				return err
			}
		}
	}
	return nil
}

// statusHeads are the names of the columns of a statusRow.
const statusHeads = "DATABASE\tRESOURCE\tSTATE\tLEADER\tPROXY\tEPOCH\tSINCE\tLEASE LEFT\tSILENT\tSTALE"

func (r statusRow) cells() []string {
	return []string{r.database, r.resource, r.state, r.leader, r.proxy, r.epoch, r.since, r.leaseLeft, r.silent, r.stale}
}

// notes returns what does not fit into the table.
func (r statusRow) notes() (notes []string) {
	if r.refused > 0 {
		notes = append(notes, fmt.Sprintf("refused %d other writes, for example of workers that do not lead", r.refused))
	}
	if r.alarms > 0 {
		notes = append(notes, fmt.Sprintf("%d false alarms: workers that wrote again after their lease was released for silence (raise worker_timeout if this grows)", r.alarms))
	}
	if n := r.guards - len(r.lost); n > 0 {
		notes = append(notes, fmt.Sprintf("guards %d tables", n))
	}
	for _, table := range r.lost {
		notes = append(notes, fmt.Sprintf("table %s is recorded as guarded, and has no guard: run fencepost guard add again, or fencepost guard remove", dash(table)))
	}
	if len(r.near) > 0 {
		notes = append(notes, fmt.Sprintf("its name is close to %s, and each has a leader of its own: if they mean the same, correct one", names(r.near)))
	}
	switch {
	case r.shadow:
		notes = append(notes, "shadow: nothing is refused")
	case r.inShadow > 0: // before a reload
		notes = append(notes, fmt.Sprintf("shadow: nothing is refused on %d connections, which have begun with enforce: shadow: let their workers connect again (fencepost clients)", r.inShadow))
	}
	switch {
	case r.discards:
		notes = append(notes, fmt.Sprintf("discards stale writes: %d so far", r.discarded))
	case r.discarded > 0: // before a reload
		notes = append(notes, fmt.Sprintf("discarded %d stale writes", r.discarded))
	}
	switch {
	case r.tables:
		notes = append(notes, "fence: tables: workers that do not lead may write what is not guarded")
	case r.inTables > 0: // before a reload
		notes = append(notes, fmt.Sprintf("fence: tables: workers that do not lead may write what is not guarded on %d connections, which have begun with that: let them connect again (fencepost clients)", r.inTables))
	}
	if r.reason != "" {
		notes = append(notes, dash(r.reason))
	}
	for _, by := range r.blocked {
		notes = append(notes, "takeover blocked: "+dash(by))
	}
	for _, b := range r.awaits {
		notes = append(notes, "takeover waits for "+b)
	}
	for _, order := range r.orders {
		notes = append(notes, "order: "+dash(order))
	}
	if len(r.waiting) > 0 {
		notes = append(notes, "waiting: "+names(r.waiting))
	}
	return notes
}

// mostNames is how many names are named in one line.
const mostNames = 10

// names returns the first names of a list, and how many more there are.
func names(list []string) string {
	var shown []string
	for _, name := range list[:min(len(list), mostNames)] {
		shown = append(shown, dash(name))
	}
	text := strings.Join(shown, ", ")
	if more := len(list) - mostNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// dash returns the text of a column, as printable returns it.
func dash(s string) string { return cmp.Or(printable(s), "-") }

// printable returns a text as it is, or quoted. Workers and users of Postgres choose names, so a
// name that contains unprintable characters, or is not valid UTF-8, is quoted. It can
// then neither add a line nor send control sequences to a terminal.
func printable(s string) string {
	quote := !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
	if quote {
		return strconv.QuoteToGraphic(s)
	}
	return s
}

// statusFromAdmin queries a running proxy.
func statusFromAdmin(ctx context.Context, proxy *admin.Client) ([]statusView, error) {
	var list admin.ResourceList
	if err := proxy.Ask(ctx, http.MethodGet, "/v1/resources", &list, http.StatusOK); err != nil {
		return nil, err
	}
	views := make([]statusView, 0, len(list.Resources))
	for _, v := range list.Resources {
		views = append(views, statusView{ResourceView: v})
	}
	return views, nil
}

// row returns the line of a resource.
func (v statusView) row() statusRow {
	row := statusRow{database: v.Database, resource: v.Resource, state: stateText(v.State, v.StateSince), leader: v.Leader, proxy: v.Proxy,
		silent: leaderSilence(v.ResourceView), blocked: v.Blocked, orders: v.Orders, waiting: v.Waiting, guards: v.GuardedTables, lost: v.lost, near: v.near, shadow: v.Enforce == "shadow", discards: v.OnStale == "discard", discarded: v.Discarded, tables: v.Fence == "tables",
		inShadow: v.InShadow, inTables: v.InTables}
	if !v.ofDatabase {
		row.stale, row.refused, row.alarms = strconv.FormatUint(v.Stale, 10), v.Refused-v.Stale, v.FalseAlarms
	}
	for _, b := range v.Awaits {
		row.awaits = append(row.awaits, awaitedText(b))
	}
	if v.Epoch > 0 {
		row.epoch = strconv.FormatInt(v.Epoch, 10)
	}
	if v.Since != nil {
		row.since = sinceText(*v.Since)
	}
	if v.StateReason != "" {
		row.reason = v.State + ": " + v.StateReason
	}
	switch {
	case v.LeaseLeft != nil:
		row.leaseLeft = leftText(seconds(*v.LeaseLeft))
	case v.ConfirmedUntil != nil && !v.ofDatabase: // it may have been renewed since the proxy read it
		row.leaseLeft = "≥" + leftText(time.Until(*v.ConfirmedUntil))
	case v.ConfirmedUntil != nil:
		row.leaseLeft = leftText(time.Until(*v.ConfirmedUntil))
	case v.Leaderless > 0:
		row.leaseLeft = "none"
	}
	return row
}

// awaitedText names a backend that a grant waits for, and says when it is ended.
func awaitedText(b fencing.Awaited) string {
	text := fmt.Sprintf("backend %d of role %s (application %s, from %s): %s", b.PID, dash(b.User), dash(b.Application), b.Address, dash(b.State))
	if b.Since != nil {
		text += " since " + sinceText(*b.Since)
	}
	if left := time.Until(b.EndsAt); left > 0 {
		return text + ", ended in " + leftText(left)
	}
	return text + ", is being ended"
}

// stateText returns a state, and since when a resource that is not led has it.
func stateText(state string, since *time.Time) string {
	if since == nil || state == "led" {
		return state
	}
	return state + " for " + max(0, time.Since(*since)).Truncate(time.Second).String()
}

func leftText(left time.Duration) string {
	return max(0, left).Truncate(100 * time.Millisecond).String()
}

// leaderSilence returns how long the leader has been silent, of how long it may be, if it is
// connected to the queried proxy.
func leaderSilence(v admin.ResourceView) string {
	for _, w := range v.Workers {
		switch {
		case w.Role != "leader":
			continue
		case w.WorkerTimeout == nil:
			return "unlimited"
		}
		return leftText(seconds(w.Silence)) + " of " + seconds(*w.WorkerTimeout).Round(time.Millisecond).String()
	}
	return ""
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// statusFromDatabase reads the fence table.
func statusFromDatabase(ctx context.Context, dsn string) ([]statusView, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	all, err := recorded.Status(ctx, conn)
	if err != nil {
		return nil, err
	}
	views := make([]statusView, 0, len(all))
	for _, r := range all {
		views = append(views, statusView{ResourceView: r.ResourceView, ofDatabase: true, lost: r.Lost})
	}
	return views, nil
}

// sinceText returns a time and how long ago that was.
func sinceText(at time.Time) string {
	return fmt.Sprintf("%s (%s)", at.Local().Format("2006-01-02 15:04:05"), time.Since(at).Truncate(time.Second))
}
