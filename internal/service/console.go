package service

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost/fencepost/internal/table"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/console"
)

// newConsole returns what operators see with psql. Its tables are those of fencepost status and fencepost clients, from
// the same sources as the admin address.
func (s *Server) newConsole() *console.Console {
	command := func(name, about string, columns []string, rows func(ctx context.Context) [][]string) console.Command {
		return console.Command{Name: name, About: about, Columns: columns, Rows: func(ctx context.Context) ([][]string, error) {
			all := rows(ctx)
			for _, row := range all {
				for i := range row {
					row[i] = table.Printable(row[i])
				}
			}
			return all, ctx.Err()
		}}
	}
	return &console.Console{
		Settings: func() (database, password string) { c := s.current().Console; return c.Database, c.Password },
		Commands: []console.Command{
			command("resources", "the resources, who leads them, and what keeps them from being led", append(table.Columns(table.ResourceHeads), "notes"), func(ctx context.Context) (rows [][]string) {
				for _, r := range s.resourceTable(ctx) {
					rows = append(rows, append(r.Cells(), strings.Join(r.Notes(), "; ")))
				}
				return rows
			}),
			command("leaders", "the workers that lead", table.Columns(table.LeaderHeads), func(ctx context.Context) (rows [][]string) {
				for _, r := range s.resourceTable(ctx) {
					if r.Leader != "" {
						rows = append(rows, r.LeaderCells())
					}
				}
				return rows
			}),
			command("clients", "the clients of this proxy", table.Columns(table.ClientHeads), func(context.Context) [][]string {
				var rows [][]string
				for _, c := range s.proxy.Connections() {
					rows = append(rows, table.Client(c, time.Now()))
				}
				return rows
			}),
			command("stats", "what each database has seen since this proxy started: traffic, and the writes that were refused", table.Columns(databaseHeads), s.databaseRows),
			command("config", "the settings of this proxy, without its secrets", []string{"key", "value", "default", "changeable"}, func(context.Context) [][]string {
				var rows [][]string
				for _, c := range s.current().Settings() {
					rows = append(rows, []string{c.Name, c.Value, c.Default, map[bool]string{true: "yes", false: "no"}[c.Reloads]})
				}
				return rows
			}),
			command("faults", "what is wrong, and what to do", table.Columns(table.FaultHeads), func(ctx context.Context) [][]string { return table.Faults(s.readiness(ctx)) }),
			command("version", "the version of this proxy", []string{"version", "go", "platform", "proxy"}, func(context.Context) [][]string {
				return [][]string{{s.options.Version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, s.id}}
			}),
		},
	}
}

// resourceTable returns the resources as fencepost status shows them.
func (s *Server) resourceTable(ctx context.Context) (all []table.Resource) {
	for _, v := range s.newAdmin(ctx).Views() {
		all = append(all, table.Resource{ResourceView: v})
	}
	table.FindNear(all)
	return all
}

const databaseHeads = "DATABASE\tCLIENTS\tRESOURCES\tLED\tTRANSACTIONS\tRECEIVED\tSENT\tREFUSED\tSTALE\tDISCARDED"

// databaseRows adds up what is known of each database.
func (s *Server) databaseRows(ctx context.Context) (rows [][]string) {
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
