package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// The password has what a URL and SCRAM treat specially.
const consolePassword = "s3cret,=ü"

func withConsole(c *config.Config) { c.Console.Password = consolePassword }

// connectConsole connects to the console.
func connectConsole(t *testing.T, r *servicetest.Running, params string) (*pgx.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), servicetest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://ops:%s@%s/fencepost?sslmode=disable&%s", url.QueryEscape(consolePassword), r.Addresses()[0], params))
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

// showOf returns what a SHOW answers about one database; others may use the server too.
func showOf(t *testing.T, conn *pgx.Conn, db, sql string) []map[string]string {
	t.Helper()
	return slices.DeleteFunc(show(t, conn, sql), func(row map[string]string) bool { return row["database"] != db })
}

// show returns what a SHOW answers: the values of a row by the names of their columns; NULL is "".
func show(t *testing.T, conn *pgx.Conn, sql string) []map[string]string {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (map[string]string, error) {
		values, one := row.RawValues(), map[string]string{}
		for i, f := range row.FieldDescriptions() {
			one[f.Name] = string(values[i])
		}
		return one, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// psqlConsole runs psql on the console.
func psqlConsole(t *testing.T, r *servicetest.Running, args ...string) (out string, code int) {
	t.Helper()
	host, port, err := net.SplitHostPort(r.Address())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "psql", append([]string{"-X", "-w", "-h", host, "-p", port, "-U", "ops"}, args...)...)
	cmd.Env = append(cmd.Environ(), "PGPASSWORD="+consolePassword, "PGSSLMODE=disable", "PGCONNECT_TIMEOUT=60")
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// TestTheConsoleShowsWhatTheCommandsShow, by psql and by the extended protocol.
func TestTheConsoleShowsWhatTheCommandsShow(t *testing.T) {
	t.Parallel()
	const worker, hostile = "host\"';--:7", "name\x1b[2J"
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, func(c *config.Config) {
		withConsole(c)
		c.Control.Password, c.Admin.Token, c.Resources = "hidden-1", "hidden-2", map[string]config.Resource{"billing": {}}
	})
	leader := r.Connect(t, db, "application_name="+url.QueryEscape(hostile)+"&fencepost.resource=billing&fencepost.worker_timeout=0&fencepost.worker="+url.QueryEscape(worker))
	follower := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=b")
	if err := servicetest.Exec(t, leader, "CREATE TABLE work (n int)"); err != nil {
		t.Fatal(err)
	}
	servicetest.WantState(t, servicetest.Exec(t, follower, "INSERT INTO work VALUES (1)"), "ZF002")
	conn, err := connectConsole(t, r, "application_name=looks")
	if err != nil {
		t.Fatal(err)
	}

	status := runCommand(t, map[string]string{"FENCEPOST_ADMIN_TOKEN": "hidden-2"}, "status", "--admin", r.AdminAddress().String())
	for _, resource := range [][]map[string]string{showOf(t, conn, db, "SHOW RESOURCES"), showOf(t, conn, db, "SHOW LEADERS")} {
		if len(resource) != 1 {
			t.Fatalf("%d resources: %v", len(resource), resource)
		}
		one := resource[0]
		if one["database"] != db || one["resource"] != "billing" || one["leader"] != worker || one["epoch"] != "1" || one["proxy"] != r.ID() || one["silent"] != "unlimited" {
			t.Errorf("%v", one)
		}
		for _, column := range []string{"leader", "epoch", "proxy"} {
			if !strings.Contains(status.stdout, one[column]) {
				t.Errorf("fencepost status has no %s %s:\n%s", column, one[column], status.stdout)
			}
		}
	}
	one := showOf(t, conn, db, "SHOW RESOURCES")[0]
	if one["state"] != "led" || one["lease_left"] == "" || one["stale"] != "0" || !strings.Contains(one["notes"], "refused 1 other writes") || !strings.Contains(one["notes"], "; waiting: b") {
		t.Errorf("%v", one)
	}

	clients := map[string]string{}
	for _, c := range show(t, conn, "SHOW CLIENTS") {
		clients[c["application"]] += c["database"] + " " + c["role"] + " " + strings.Fields(c["state"])[0] + ";"
	}
	if clients[`"name\x1b[2J"`] != db+" leader idle;" || clients["looks"] != "fencepost console idle;" || len(clients) != 3 {
		t.Errorf("%v", clients)
	}
	stats := showOf(t, conn, db, "SHOW STATS")
	if len(stats) != 1 || stats[0]["database"] != db || stats[0]["clients"] != "2" || stats[0]["resources"] != "1" || stats[0]["led"] != "1" || stats[0]["refused"] != "1" || stats[0]["transactions"] == "0" {
		t.Errorf("%v", stats)
	}
	settings := map[string]map[string]string{}
	for _, c := range show(t, conn, "SHOW CONFIG") {
		settings[c["key"]] = c
	}
	if c := settings["lease.ttl"]; c["value"] != "10s" || c["default"] != "10s" || c["changeable"] != "yes" || settings["election.provider"]["changeable"] != "no" {
		t.Errorf("%v", c)
	}
	if c := settings["control.password"]; c["value"] != "******" || c["default"] != "" || settings["console.password"]["value"] != "******" {
		t.Errorf("%v", c)
	}
	for _, c := range settings {
		if strings.Contains(fmt.Sprint(c), "hidden-") || strings.Contains(fmt.Sprint(c), consolePassword) {
			t.Errorf("a secret is shown: %v", c)
		}
	}
	if v := show(t, conn, "SHOW VERSION"); len(v) != 1 || v[0]["version"] != "test" || v[0]["proxy"] != r.ID() {
		t.Errorf("%v", v)
	}
	var commands []string
	for _, c := range show(t, conn, "SHOW HELP") {
		commands = append(commands, c["command"])
	}
	if want := "SHOW HELP SHOW RESOURCES SHOW LEADERS SHOW CLIENTS SHOW STATS SHOW CONFIG SHOW FAULTS SHOW VERSION"; strings.Join(commands, " ") != want {
		t.Errorf("%v", commands)
	}
	for _, sql := range append(commands, "SHOW nothing", "DELETE FROM work") {
		out, code := psqlConsole(t, r, "-d", "fencepost", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", "-c", sql)
		switch {
		case sql == "SHOW nothing" && (code == 0 || !strings.Contains(out, "42704") || !strings.Contains(out, "HINT:  Run SHOW HELP")),
			sql == "DELETE FROM work" && (code == 0 || !strings.Contains(out, "0A000")),
			slices.Contains(commands, sql) && (code != 0 || !strings.Contains(out, "---") || strings.Contains(out, "WARNING")):
			t.Errorf("%s: code %d:\n%s", sql, code, out)
		}
	}
}

// TestTheConsoleShowsFaults, also when Postgres is gone.
func TestTheConsoleShowsFaults(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, pgtest.Shared(t), func(c *config.Config) {
		withConsole(c)
		c.Upstream.Address = config.Addresses{"127.0.0.1:1"}
	})
	conn, err := connectConsole(t, r, "")
	if err != nil {
		t.Fatal(err)
	}
	servicetest.Eventually(t, "the fault to be shown", func() bool {
		faults := show(t, conn, "SHOW FAULTS")
		return len(faults) > 0 && faults[0]["kind"] == "upstream" && strings.Contains(faults[0]["problem"], "127.0.0.1:1")
	})
}

// TestWhoIsNotLetIntoTheConsole is told so, counted, and logged as any other connection that is refused.
func TestWhoIsNotLetIntoTheConsole(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := servicetest.Start(t, s, func(c *config.Config) { withConsole(c); c.StartupTimeout = config.Duration(servicetest.Patience) })
	_, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://ops:wrong@%s/fencepost?sslmode=disable", r.Addresses()[0]))
	servicetest.WantState(t, err, "28P01")
	lines := r.Log.Lines(t, "connection refused")
	if len(lines) != 1 || lines[0]["reason"] != "authentication" || lines[0]["user"] != "ops" || lines[0]["database"] != "fencepost" || lines[0]["sqlstate"] != "28P01" {
		t.Errorf("the log has %v", lines)
	}
	if _, metrics := r.Ask(t, "/metrics"); !strings.Contains(metrics, `fencepost_connections_refused_total{reason="authentication"} 1`) {
		t.Error("it is not counted")
	}
	if _, err := connectConsole(t, r, "replication=database"); err == nil {
		t.Error("a replication connection was let in")
	}

	off := servicetest.Start(t, s, nil)
	_, err = connectConsole(t, off, "")
	servicetest.WantState(t, err, "28000") // from Postgres, which has no such role
}

// TestAClientThatDoesNotLogInToTheConsoleIsClosed after the startup's timeout.
func TestAClientThatDoesNotLogInToTheConsoleIsClosed(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, pgtest.Shared(t), func(c *config.Config) { withConsole(c); c.StartupTimeout = config.Duration(300 * time.Millisecond) })
	conn, err := net.Dial("tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("\x00\x00\x00\x25\x00\x03\x00\x00user\x00ops\x00database\x00fencepost\x00\x00")); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	_ = conn.SetReadDeadline(time.Now().Add(servicetest.Patience))
	if _, err := got.ReadFrom(conn); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got.String(), "SCRAM-SHA-256") || !strings.Contains(got.String(), "the answer to the authentication request did not arrive in time") {
		t.Errorf("%q", got.String())
	}
}

// TestTheConsoleIsSwitchedByAReload, and who is in it stays.
func TestTheConsoleIsSwitchedByAReload(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	r := servicetest.Start(t, s, withConsole)
	conn, err := connectConsole(t, r, "")
	if err != nil {
		t.Fatal(err)
	}
	next := r.Config()
	reload := func(password string) {
		next.Console.Password = password
		r.SetConfig(next)
		if result := r.Reload(t.Context()); !result.OK() {
			t.Fatalf("%+v", result)
		}
	}
	reload("")
	_, err = connectConsole(t, r, "")
	servicetest.WantState(t, err, "28000") // from Postgres, which has no such role
	if len(show(t, conn, "SHOW VERSION")) != 1 {
		t.Error("the console is gone for who was in it")
	}
	reload(consolePassword)
	if _, err := connectConsole(t, r, ""); err != nil {
		t.Error(err)
	}
}

// TestTheConsoleEndsWithTheProxy: a client that waits for nothing is told, and does not keep the proxy.
func TestTheConsoleEndsWithTheProxy(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, pgtest.Shared(t), func(c *config.Config) { withConsole(c); c.DrainTimeout = config.Duration(servicetest.Patience) })
	conn, err := connectConsole(t, r, "")
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().ReceiveMessage(context.Background())
		waiting <- err
	}()
	began := time.Now()
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > servicetest.Patience/2 {
		t.Errorf("it took %s", took)
	}
	var pg *pgconn.PgError
	if err := <-waiting; !errors.As(err, &pg) || pg.Code != "57P01" || pg.Severity != "FATAL" {
		t.Errorf("the client was told %v", err)
	}
}

// TestTheConsoleUnderTLS: a proxy that requires TLS requires it here too.
func TestTheConsoleUnderTLS(t *testing.T) {
	t.Parallel()
	_, ca, _ := pgtest.SharedTLS(t, 0)
	own := ca.Issue(t, pgtest.Subject{Name: "fencepost", Hosts: []string{"localhost"}})
	r := servicetest.Start(t, pgtest.Shared(t), func(c *config.Config) {
		withConsole(c)
		c.TLS.Mode, c.TLS.CertFile, c.TLS.KeyFile = "require", own.CertFile, own.KeyFile
	})
	_, err := connectConsole(t, r, "") // in the clear
	servicetest.WantState(t, err, "28000")
	_, port, _ := net.SplitHostPort(r.Address())
	out, code := psqlConsole(t, r, "-d", fmt.Sprintf("host=localhost hostaddr=127.0.0.1 port=%s dbname=fencepost sslmode=verify-full sslrootcert=%s", port, ca.File), "-Atc", "SHOW VERSION")
	if code != 0 || !strings.HasPrefix(out, "test"+"|") {
		t.Errorf("code %d: %s", code, out)
	}
}

// TestTheConsoleTakesAConnection of limits.max_connections.
func TestTheConsoleTakesAConnection(t *testing.T) {
	t.Parallel()
	r := servicetest.Start(t, pgtest.Shared(t), func(c *config.Config) { withConsole(c); c.Limits.MaxConnections = 1 })
	if _, err := connectConsole(t, r, ""); err != nil {
		t.Fatal(err)
	}
	_, err := connectConsole(t, r, "")
	servicetest.WantState(t, err, "53300")
}
