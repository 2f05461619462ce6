package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/fencing/operator"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/internal/table"
)

const resourceAbout = `
Usage: fencepost resource list (--database NAME [--config FILE] | --dsn DSN)
       fencepost resource rm RESOURCE [--force] (--database NAME [--config FILE] | --dsn DSN)

list shows all resources of a database: who holds the epoch, since when, and which
orders of an operator are in force.

rm removes a resource that nobody needs any more: its fence, its lease and its ledger.
Whoever still leads it is refused from then on, also if the resource is created
again: a worker that connects for it creates it, with epochs above the old ones. What
the ledger knew of former leaders is lost, so stop the workers first. Without --force,
rm refuses a resource that is paused, whose leader has a lease (elector postgres), or
whose leader was granted its epoch within the last hour.
` + connecting

const ordersAbout = `
Usage: fencepost orders [--resource NAME] (--database NAME [--config FILE] | --dsn DSN)

Shows what operators have ordered in a database, the oldest first: what, for whom,
who asked for it (--by, and the role that the server knows) and why. resource list
shows which orders are in force.

The command connects to the database as the control role: with the configuration
and --database, or with --dsn.`

const ledgerAbout = `
Usage: fencepost ledger prune --keep DURATION (--database NAME [--config FILE] | --dsn DSN)

Deletes the grants that are older than --keep, such as 90d, except the newest grant of
each resource. The ledger is what Fencepost knows a former leader by when it connects
again under the same worker id: keep grants for longer than any worker may be frozen, at
least a day.
` + connecting

// leastKept is the least age of grants that may be deleted.
const leastKept = 24 * time.Hour

// runResource runs resource list and resource rm.
func runResource(ctx context.Context, t terminal, args []string) error {
	verb := ""
	if len(args) > 0 && (args[0] == "list" || args[0] == "rm") {
		verb, args = args[0], args[1:]
	}
	var o orderOptions
	fs := flag.NewFlagSet("resource", flag.ContinueOnError)
	if verb == "list" {
		o.target(fs, t)
		if _, err := parseOrder(t, fs, resourceAbout, "", args); err != nil {
			return err
		}
		return o.run(ctx, hosts.Aim{At: o.at, Reads: true, Notes: t.stderr, Warnings: t.stderr, Out: t.stdout}, t,
			func(ctx context.Context, t terminal, db *fence.Database, _ string) error {
				return listResources(ctx, t, db)
			})
	}
	o.flags(fs, t)
	force := fs.Bool("force", false, "remove a resource that is in use too")
	what := "resource"
	if verb == "" {
		what = ""
	}
	resource, err := parseOrder(t, fs, resourceAbout, what, args)
	if err != nil {
		return err
	}
	if verb == "" {
		return usagef("no action given: use resource list or resource rm")
	}
	return o.give(ctx, t, func(ctx context.Context, t terminal, db *fence.Database, database string) error {
		o.sayGrace(t, database)
		order, err := operator.New(db).Remove(ctx, resource, *force, o.orderer())
		switch {
		case errors.Is(err, fence.ErrNoResource), err == nil && order == nil:
			fmt.Fprintf(t.stdout, "database %s: there is no resource %s: nothing changed\n", database, table.Dash(resource))
			return nil
		case err != nil:
			return err
		}
		sayEvicted(t, database, order)
		fmt.Fprintf(t.stdout, "database %s: resource %s is removed\n", database, table.Dash(resource))
		return nil
	})
}

func listResources(ctx context.Context, t terminal, db *fence.Database) error {
	list, err := db.Status(ctx)
	if err != nil {
		return err
	}
	bars, err := operator.New(db).Bars(ctx)
	if err != nil {
		return err
	}
	var rows [][]string
	for _, r := range list {
		since := ""
		if !r.GrantedAt.IsZero() {
			since = table.Since(r.GrantedAt)
		}
		rows = append(rows, []string{r.Resource, strconv.FormatInt(int64(r.Epoch), 10), r.Worker, since, barsText(bars[r.Resource])})
	}
	return table.Print(t.stdout, "RESOURCE\tEPOCH\tHOLDER\tSINCE\tORDERS", rows)
}

// barsText says which orders of a resource are in force.
func barsText(bars []operator.Bar) string {
	var texts []string
	for _, b := range bars {
		text := fmt.Sprintf("paused since %s by %s", b.AskedAt.Local().Format(time.DateTime), table.Dash(b.AskedBy))
		switch {
		case b.Offered:
			text = fmt.Sprintf("handed over to worker %s, if it takes the lead before %s, by %s", table.Dash(b.Worker), b.Until.Local().Format(time.DateTime), table.Dash(b.AskedBy))
		case b.Worker != "":
			text = fmt.Sprintf("worker %s may not campaign until %s, by %s", table.Dash(b.Worker), b.Until.Local().Format(time.DateTime), table.Dash(b.AskedBy))
		}
		if b.Reason != "" {
			text += ": " + table.Dash(b.Reason)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

func runOrders(ctx context.Context, t terminal, args []string) error {
	var o orderOptions
	fs := flag.NewFlagSet("orders", flag.ContinueOnError)
	o.target(fs, t)
	resource := fs.String("resource", "", "show only the orders about the resource of this `name`")
	if _, err := parseOrder(t, fs, ordersAbout, "", args); err != nil {
		return err
	}
	return o.run(ctx, hosts.Aim{At: o.at, Reads: true, Notes: t.stderr, Warnings: t.stderr, Out: t.stdout}, t,
		func(ctx context.Context, t terminal, db *fence.Database, database string) error {
			all, err := operator.New(db).Orders(ctx, 0)
			if err != nil {
				return err
			}
			return writeOrders(t.stdout, slices.DeleteFunc(all.Orders, func(o fencing.Order) bool { return *resource != "" && o.Resource != *resource }))
		})
}

// writeOrders writes orders in a table.
func writeOrders(out io.Writer, all []fencing.Order) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(out, "no order was given")
		return err
	}
	const form = "2006-01-02 15:04:05 UTC"
	var rows [][]string
	for _, o := range all {
		until, epoch := "", ""
		if !o.Until.IsZero() {
			until = o.Until.UTC().Format(form)
		}
		if o.Epoch != 0 {
			epoch = strconv.FormatInt(int64(o.Epoch), 10)
		}
		rows = append(rows, []string{o.AskedAt.UTC().Format(form), string(o.Kind), o.Resource, o.Worker, until, epoch, o.AskedBy, o.Role, o.Reason})
	}
	return table.Print(out, "WHEN\tORDER\tRESOURCE\tWORKER\tUNTIL\tEPOCH\tASKED BY\tROLE\tREASON", rows)
}

// runLedger runs ledger prune.
func runLedger(ctx context.Context, t terminal, args []string) error {
	verb := ""
	if len(args) > 0 && args[0] == "prune" {
		verb, args = args[0], args[1:]
	}
	var o orderOptions
	fs := flag.NewFlagSet("ledger", flag.ContinueOnError)
	o.flags(fs, t)
	keep := fs.String("keep", "", "`duration` for which grants are kept, such as 90d")
	if _, err := parseOrder(t, fs, ledgerAbout, "", args); err != nil {
		return err
	}
	switch {
	case verb == "":
		return usagef("no action given: use ledger prune")
	case *keep == "":
		return usagef("--keep is required: it says how old the grants are that are deleted")
	}
	kept, err := parseDays("--keep", *keep)
	if err != nil {
		return err
	}
	if kept < leastKept {
		return usagef("--keep is %q: keep grants for at least a day", *keep)
	}
	return o.give(ctx, t, func(ctx context.Context, t terminal, db *fence.Database, database string) error {
		deleted, err := operator.New(db).Prune(ctx, kept, o.orderer())
		if err != nil {
			return err
		}
		fmt.Fprintf(t.stdout, "database %s: deleted %d grants older than %s\n", database, deleted, *keep)
		return nil
	})
}
