package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/table"
	"github.com/fencepost/fencepost/proxy"
)

const clientsAbout = `
Usage: fencepost clients [--admin ADDRESS] [--resource NAME] [--user NAME] [--database NAME] [--json]

Shows the clients that are connected to a running Fencepost, with or without a
resource, the oldest first.

ROLE is leader, follower, lapsed (its lease is not confirmed), superseded, observer,
unfenced or console. FENCE says what refuses a client's writes, as the configuration
was when it connected: session (Fencepost, unless its worker leads), tables (of a
worker that does not lead, only guards), read-only (Fencepost, all of them), or
nothing: shadow and allow. STATE is connecting, waiting for the lead, active (a reply is pending),
in transaction (the server waits for the client), idle or ending; for so long the
client has sent and got nothing, or, of one that connects or waits, been connected.
RECEIVED and SENT are bytes from and to the client.

--json prints the clients as /v1/connections returns them.`

func runClients(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("clients", flag.ContinueOnError)
	var flags admin.ClientFlags
	flags.Add(fs, t.getenv, config.Default().Admin.Address)
	resource := fs.String("resource", "", "show only clients that have named the resource of this `name`")
	user := fs.String("user", "", "show only clients of the user of this `name`")
	database := fs.String("database", "", "show only clients of the database of this `name`")
	asJSON := fs.Bool("json", false, "print JSON")
	if err := parseFlags(t, fs, clientsAbout, args, 0); err != nil {
		return err
	}
	var list admin.ConnectionList
	if err := ask(ctx, &flags, "/v1/connections", &list); err != nil {
		return err
	}
	list.Connections = slices.DeleteFunc(list.Connections, func(c proxy.Connection) bool {
		return *resource != "" && c.Resource != *resource && !slices.Contains(c.Chosen, *resource) ||
			*user != "" && c.User != *user || *database != "" && c.Database != *database
	})
	if *asJSON {
		return printJSON(t.stdout, list)
	}
	if len(list.Connections) == 0 {
		_, err := fmt.Fprintln(t.stdout, "no such client is connected to this proxy")
		return err
	}
	rows := make([][]string, len(list.Connections))
	for i, c := range list.Connections {
		rows[i] = table.Client(c, time.Now())
	}
	return table.Print(t.stdout, table.ClientHeads, rows)
}
