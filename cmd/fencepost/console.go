package main

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/console"
)

// newConsole returns what operators see with psql. Its tables are those of fencepost status and fencepost clients, from
// the same sources as the admin address.
func (s *serving) newConsole() *console.Console {
	command := func(name, about string, columns []string, rows func(ctx context.Context) [][]string) console.Command {
		return console.Command{Name: name, About: about, Columns: columns, Rows: func(ctx context.Context) ([][]string, error) {
			all := rows(ctx)
			for _, row := range all {
				for i := range row {
					row[i] = printable(row[i])
				}
			}
			return all, ctx.Err()
		}}
	}
	return &console.Console{
		Settings: func() (database, password string) { c := s.current().Console; return c.Database, c.Password },
		Commands: []console.Command{
			command("resources", "the resources, who leads them, and what keeps them from being led", append(columns(statusHeads), "notes"), func(ctx context.Context) [][]string {
				return s.statusRows(ctx, func(r statusRow) []string { return append(r.cells(), strings.Join(r.notes(), "; ")) })
			}),
			command("leaders", "the workers that lead", columns(leaderHeads), func(ctx context.Context) [][]string {
				return slices.DeleteFunc(s.statusRows(ctx, statusRow.leaderCells), func(row []string) bool { return row == nil })
			}),
			command("clients", "the clients of this proxy", columns(clientHeads), func(context.Context) [][]string {
				var rows [][]string
				for _, c := range s.proxy.Connections() {
					rows = append(rows, clientRow(c, time.Now()))
				}
				return rows
			}),
			command("stats", "what each database has seen since this proxy started: traffic, and the writes that were refused", columns(databaseHeads), s.databaseRows),
			command("config", "the settings of this proxy, without its secrets", []string{"key", "value", "default", "changeable"}, func(context.Context) [][]string {
				var rows [][]string
				for _, c := range s.current().Settings() {
					rows = append(rows, []string{c.Name, c.Value, c.Default, map[bool]string{true: "yes", false: "no"}[c.Reloads]})
				}
				return rows
			}),
			command("faults", "what is wrong, and what to do", []string{"kind", "where", "since", "problem", "remedy"}, func(ctx context.Context) [][]string { return faultRows(s.readiness(ctx)) }),
			command("version", "the version of this proxy", []string{"version", "go", "platform", "proxy"}, func(context.Context) [][]string {
				return [][]string{{versionText(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, s.id}}
			}),
		},
	}
}

// columns returns the names of columns as SQL would have them.
func columns(heads string) []string {
	return strings.Split(strings.ToLower(strings.ReplaceAll(heads, " ", "_")), "\t")
}

// statusRows returns a row for each resource, as fencepost status shows it.
func (s *serving) statusRows(ctx context.Context, cells func(statusRow) []string) [][]string {
	var rows [][]string
	for _, v := range s.newAdmin(ctx).Views() {
		rows = append(rows, cells(statusView{ResourceView: v}.row()))
	}
	return rows
}

const leaderHeads = "DATABASE\tRESOURCE\tLEADER\tPROXY\tEPOCH\tSINCE\tLEASE LEFT\tSILENT"

// leaderCells are those of a resource that is led, nil for another one.
func (r statusRow) leaderCells() []string {
	if r.leader == "" {
		return nil
	}
	return []string{r.database, r.resource, r.leader, r.proxy, r.epoch, r.since, r.leaseLeft, r.silent}
}

const databaseHeads = "DATABASE\tCLIENTS\tRESOURCES\tLED\tTRANSACTIONS\tRECEIVED\tSENT\tREFUSED\tSTALE\tDISCARDED"

// databaseRows adds up what is known of each database.
func (s *serving) databaseRows(ctx context.Context) (rows [][]string) {
	type sums struct {
		clients, resources, led   uint64
		refused, stale, discarded uint64
		proxy.Traffic
	}
	all := map[string]*sums{}
	of := func(database string) *sums {
		if all[database] == nil {
			all[database] = &sums{}
		}
		return all[database]
	}
	for database, t := range s.proxy.Traffic() {
		of(database).Traffic = t
	}
	for _, c := range s.proxy.Connections() {
		if c.Database != "" && c.Role != "console" {
			of(c.Database).clients++
		}
	}
	for _, v := range s.newAdmin(ctx).Views() {
		n := of(v.Database)
		n.resources++
		if v.Leader != "" {
			n.led++
		}
		n.refused, n.stale, n.discarded = n.refused+v.Refused, n.stale+v.Stale, n.discarded+v.Discarded
	}
	for _, database := range slices.Sorted(maps.Keys(all)) {
		row, n := []string{database}, all[database]
		for _, count := range []uint64{n.clients, n.resources, n.led, n.Transactions, n.Received, n.Sent, n.refused, n.stale, n.discarded} {
			row = append(row, strconv.FormatUint(count, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

// faultRows returns what fencepost status says in front of its table.
func faultRows(r admin.Readiness) (rows [][]string) {
	for _, f := range r.Faults {
		rows = append(rows, []string{string(f.Kind), f.Where, sinceText(f.Since), f.Problem, f.Remedy})
	}
	for _, w := range r.Warnings {
		rows = append(rows, []string{"warning", "", "", w, ""})
	}
	if len(r.RestartPending) > 0 {
		rows = append(rows, []string{"restart pending", "", "", "changed in the configuration, and applied by a restart only: " + strings.Join(r.RestartPending, ", "), ""})
	}
	if r.ReloadFailed != nil {
		rows = append(rows, []string{"reload failed", "", sinceText(*r.ReloadFailed), reloadFailed, "fencepost reload says what is wrong"})
	}
	if r.Draining {
		rows = append(rows, []string{"draining", "", "", "the proxy is shutting down", ""})
	}
	return rows
}
