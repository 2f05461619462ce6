package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/cmd/fencepost/admin"
	"github.com/fencepost/fencepost/cmd/fencepost/config"
)

const statusAbout = `
Usage: fencepost status [--admin ADDRESS | --dsn DSN]

Shows resources, leaders and epochs. By default it queries a running Fencepost,
which knows the leases and the refused writes of its own workers. With --dsn it
reads the fence table of one database, which contains the grants of all proxies.`

// statusRow is one line of the table. An empty field is not known from that source.
type statusRow struct {
	database, resource, leader, epoch, since, leaseLeft, refused, timeout, falseAlarms string

	blocked []string // what blocks a takeover, or would block one
}

func runStatus(ctx context.Context, t terminal, args []string) error {
	fs := flag.NewFlagSet("status", flag.ContinueOnError)
	address := fs.String("admin", cmp.Or(t.getenv("FENCEPOST_ADMIN"), config.Default().Admin), "admin `address` of a running Fencepost")
	dsn := fs.String("dsn", "", "`DSN` of a database, to read its fence table instead")
	if err := parseFlags(t, fs, statusAbout, args, 0); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var rows []statusRow
	var err error
	if *dsn != "" {
		rows, err = statusFromDatabase(ctx, *dsn)
	} else {
		rows, err = statusFromAdmin(ctx, *address)
	}
	if err != nil {
		return err
	}
	return printStatus(t.stdout, rows)
}

func printStatus(out io.Writer, rows []statusRow) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(out, "no resources yet: no client has connected with fencepost.resource")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DATABASE\tRESOURCE\tLEADER\tEPOCH\tSINCE\tLEASE LEFT\tREFUSED\tWORKER TIMEOUT\tFALSE ALARMS")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", dash(r.database), dash(r.resource), dash(r.leader), dash(r.epoch), dash(r.since),
			dash(r.leaseLeft), dash(r.refused), dash(r.timeout), dash(r.falseAlarms))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		for _, by := range r.blocked {
			if _, err := fmt.Fprintf(out, "%s/%s: takeover blocked: %s\n", dash(r.database), dash(r.resource), dash(by)); err != nil {
				return err
			}
		}
	}
	return nil
}

// dash returns the text of a column. Workers and users of Postgres choose names, so a
// name that contains unprintable characters, or is not valid UTF-8, is quoted. It can
// then neither add a line nor send control sequences to a terminal.
func dash(s string) string {
	quote := !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) })
	if quote {
		return strconv.QuoteToGraphic(s)
	}
	return cmp.Or(s, "-")
}

// statusFromAdmin queries a running proxy.
func statusFromAdmin(ctx context.Context, address string) ([]statusRow, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/resources", nil)
	if err != nil {
		return nil, usagef("--admin is %q: use host:port", address)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("query the admin address (--admin, or the server's setting admin): %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("query the admin address %s: unexpected status %s; is it a Fencepost?", address, resp.Status)
	}
	var list admin.ResourceList
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&list); err != nil {
		return nil, fmt.Errorf("decode the response of %s: %w", address, err)
	}
	var rows []statusRow
	for _, v := range list.Resources {
		row := statusRow{database: v.Database, resource: v.Resource, leader: v.Leader, refused: strconv.FormatUint(v.Refused, 10),
			timeout: leaderTimeout(v), falseAlarms: strconv.Itoa(v.FalseAlarms), blocked: v.Blocked}
		if v.Epoch > 0 {
			row.epoch = strconv.FormatInt(v.Epoch, 10)
		}
		if v.Since != nil {
			row.since = sinceText(*v.Since)
		}
		switch {
		case v.LeaseLeft != nil:
			row.leaseLeft = time.Duration(*v.LeaseLeft * float64(time.Second)).Truncate(100 * time.Millisecond).String()
		case v.Leaderless > 0:
			row.leaseLeft = "none"
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// leaderTimeout returns how long the leader may be silent, if it is connected to the
// queried proxy.
func leaderTimeout(v admin.ResourceView) string {
	for _, w := range v.Workers {
		switch {
		case w.Role != "leader":
		case w.WorkerTimeout == nil:
			return "never"
		default:
			return time.Duration(*w.WorkerTimeout * float64(time.Second)).Round(time.Millisecond).String()
		}
	}
	return ""
}

// statusSQL reads the view that everybody may read, and the prepared transactions that
// have read the fence, which block every takeover.
const statusSQL = `SELECT pg_catalog.current_database()::text, s.resource, coalesce(s.worker, ''), s.epoch, s.granted_at,
	coalesce((SELECT array_agg(format('prepared transaction %L of role %I must be committed or rolled back', p.gid, p.owner) ORDER BY p.prepared)
		FROM pg_catalog.pg_locks h
		JOIN pg_catalog.pg_locks x ON x.pid IS NULL AND x.locktype = 'transactionid' AND x.virtualtransaction = h.virtualtransaction
		JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
		WHERE h.locktype = 'relation' AND h.granted AND h.pid IS NULL AND p.database = pg_catalog.current_database()
			AND h.relation = pg_catalog.to_regclass(s.sequence)), '{}')
	FROM fencepost.status s ORDER BY s.resource`

// statusFromDatabase reads the fence table.
func statusFromDatabase(ctx context.Context, dsn string) ([]statusRow, error) {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	result, err := conn.Query(ctx, statusSQL)
	if err != nil {
		return nil, fmt.Errorf("read fencepost.status (fencepost migrate creates it): %w", err)
	}
	rows, err := pgx.CollectRows(result, func(r pgx.CollectableRow) (statusRow, error) {
		var row statusRow
		var epoch int64
		var since *time.Time
		err := r.Scan(&row.database, &row.resource, &row.leader, &epoch, &since, &row.blocked)
		if epoch > 0 {
			row.epoch = strconv.FormatInt(epoch, 10)
		}
		if since != nil {
			row.since = sinceText(*since)
		}
		return row, err
	})
	if err != nil {
		return nil, fmt.Errorf("read fencepost.status (fencepost migrate creates it): %w", err)
	}
	return rows, nil
}

// sinceText returns a time and how long ago that was.
func sinceText(at time.Time) string {
	return fmt.Sprintf("%s (%s)", at.Local().Format("2006-01-02 15:04:05"), time.Since(at).Truncate(time.Second))
}
