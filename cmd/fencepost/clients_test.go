package main

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
	"github.com/fencepost/fencepost/proxy"
)

// clientsOf asks for the clients of a proxy, by their application names; those that have sent none are under "".
func clientsOf(t *testing.T, r *servicetest.Running, flags ...string) map[string]proxy.Connection {
	t.Helper()
	out := runCommand(t, nil, append([]string{"clients", "--json", "--admin", r.AdminAddress().String()}, flags...)...)
	var list admin.ConnectionList
	if err := json.Unmarshal([]byte(out.stdout), &list); err != nil || out.code != exitOK {
		t.Fatalf("%v, exit code %d: %s%s", err, out.code, out.stdout, out.stderr)
	}
	all := map[string]proxy.Connection{}
	for _, c := range list.Connections {
		all[c.ApplicationName] = c
	}
	return all
}

// TestClientsAreListed with what they do, whether or not they have a resource or a session, and with what went through them.
func TestClientsAreListed(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, nil)
	connect := func(name, params string) *pgx.Conn {
		return r.Connect(t, db, "application_name="+name+params)
	}
	leader := connect("leader", "&fencepost.resource=billing&fencepost.worker=a")
	if err := servicetest.Exec(t, leader, "CREATE TABLE work (n text)"); err != nil {
		t.Fatal(err)
	}
	before := clientsOf(t, r)["leader"]
	if err := servicetest.Exec(t, leader, "INSERT INTO work SELECT '"+strings.Repeat("x", 1000)+"'"); err != nil {
		t.Fatal(err)
	}
	if err := servicetest.Exec(t, leader, "SELECT n || n FROM work"); err != nil {
		t.Fatal(err)
	}
	busy := connect("busy", "&fencepost.resource=billing&fencepost.worker=a")
	done := make(chan error, 1)
	s.Exec(t, pgtest.Superuser, db, "CREATE FUNCTION hold() RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_lock(1)'")
	lock := s.Connect(t, pgtest.Superuser, db)
	if _, err := lock.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); err != nil {
		t.Fatal(err)
	}
	go func() { done <- servicetest.Exec(t, busy, "SELECT hold()") }()
	if err := servicetest.Exec(t, connect("inside", ""), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	connect("observer", "&fencepost.resource=mail&fencepost.worker=o&fencepost.campaign=off")
	several := connect("several", "&fencepost.resource=one&fencepost.worker=s")
	if err := servicetest.Exec(t, several, "SET fencepost.resource = 'two'"); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		conn, err := pgx.Connect(t.Context(), r.DSN(db, "application_name=waiting&fencepost.resource=billing&fencepost.worker=b&fencepost.campaign=wait"))
		if err == nil {
			err = conn.Close(t.Context())
		}
		waiting <- err
	}()
	silent, err := net.Dial("tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()

	want := []string{" connecting   ", "busy active a leader billing", "inside in transaction  unfenced ", "leader idle a leader billing",
		"observer idle o observer mail", "several idle s leader one,two", "waiting waiting for the lead b follower billing"}
	var got []string
	servicetest.Eventually(t, fmt.Sprintf("the clients to be %q", want), func() bool {
		got = nil
		for name, c := range clientsOf(t, r) {
			got = append(got, strings.Join([]string{name, c.State, c.Worker, c.Role, strings.Join(append([]string{c.Resource}, c.Chosen...), ",")}, " "))
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
	after := clientsOf(t, r)["leader"]
	if in, out := after.Received-before.Received, after.Sent-before.Sent; in < 1000 || in > 2000 || out < 2000 || out > 3000 {
		t.Errorf("%d bytes were received and %d sent", in, out)
	}
	if after.Transactions != before.Transactions+2 || !after.Since.After(before.Since) || after.Start.After(before.Since) {
		t.Errorf("before: %+v, after: %+v", before, after)
	}
	if c := clientsOf(t, r)["leader"]; c.Database != db || c.User != pgtest.App || c.Client != leader.PgConn().Conn().LocalAddr().String() || c.Session == "" {
		t.Errorf("the leader is %+v", c)
	}
	for flag, n := range map[string]int{"--resource=two": 1, "--resource=billing": 3, "--database=" + db: 6, "--database=none": 0, "--user=" + pgtest.App: 6} {
		if got := clientsOf(t, r, flag); len(got) != n {
			t.Errorf("%s: %d clients, want %d: %v", flag, len(got), n, got)
		}
	}
	if _, err := lock.Exec(t.Context(), "SELECT pg_advisory_unlock(1)"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, conn := range []*pgx.Conn{leader, busy} {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
}

// TestClientsWriteNoLinesOfTheTable: whoever connects chooses most of what is shown.
func TestClientsWriteNoLinesOfTheTable(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, nil)
	r.Connect(t, db, "application_name=%1b%5b2Ka%0aroot%09leader&fencepost.resource=r&fencepost.worker=w")
	out := runCommand(t, nil, "clients", "--admin", r.AdminAddress().String())
	if out.code != exitOK || strings.Count(out.stdout, "\n") != 2 || strings.ContainsAny(out.stdout, "\x1b\t") || !strings.Contains(out.stdout, `a\nroot\tleader`) {
		t.Errorf("exit code %d:\n%q%s", out.code, out.stdout, out.stderr)
	}
	out = runCommand(t, nil, "clients", "--resource", "none", "--admin", r.AdminAddress().String())
	if out.code != exitOK || out.stdout != "no such client is connected to this proxy\n" {
		t.Errorf("exit code %d: %s%s", out.code, out.stdout, out.stderr)
	}
}

// TestConnectionsAreLogged if that is configured, which a reload can change, and their traffic is counted in any case.
func TestConnectionsAreLogged(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	var cfg config.Config
	r := servicetest.Start(t, s, func(c *config.Config) { cfg = *c })
	quiet := r.Connect(t, db, "application_name=quiet")
	cfg.Log.Connections = true
	r.SetConfig(cfg)
	if out := runCommand(t, nil, "reload", "--admin", r.AdminAddress().String()); !strings.Contains(out.stdout, "log.connections: false -> true: applied") {
		t.Fatalf("exit code %d: %s%s", out.code, out.stdout, out.stderr)
	}
	conn := r.Connect(t, db, "application_name=logged&fencepost.resource=billing&fencepost.worker=w")
	if err := servicetest.Exec(t, conn, "SELECT repeat('x', 1000)"); err != nil {
		t.Fatal(err)
	}
	client := conn.PgConn().Conn().LocalAddr().String()
	for _, c := range []*pgx.Conn{conn, quiet} {
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	servicetest.Eventually(t, "both to be logged", func() bool { return len(r.Log.Lines(t, "client disconnected")) == 2 })
	begun := r.Log.Lines(t, "client connected")
	if len(begun) != 1 {
		t.Fatalf("begun: %v", begun)
	}
	for _, line := range append(begun, r.Log.Lines(t, "client disconnected")...) {
		if line["application_name"] == "quiet" {
			if line["role"] != "unfenced" {
				t.Errorf("without a resource: %v", line)
			}
			continue
		}
		for field, want := range map[string]any{"database": db, "user": pgtest.App, "client": client, "resource": "billing", "worker": "w", "role": "leader"} {
			if line[field] != want {
				t.Errorf("%v: %s is %v, want %v", line["msg"], field, line[field], want)
			}
		}
		if sent, _ := line["sent_bytes"].(float64); line["msg"] == "client disconnected" && (sent < 1000 || line["transactions"] == 0.0 || line["duration"] == nil) {
			t.Errorf("the line of the end: %v", line)
		}
	}
	_, metrics := r.Ask(t, "/metrics")
	for _, name := range []string{"fencepost_received_bytes_total", "fencepost_sent_bytes_total", "fencepost_transactions_total"} {
		var n float64
		_, rest, _ := strings.Cut(metrics, "\n"+name+`{database="`+db+`"} `)
		if _, err := fmt.Sscan(rest, &n); err != nil || n == 0 {
			t.Errorf("%s is %v, %v", name, n, err)
		}
	}
}

// TestClientsThatBeganBeforeAReload are told apart from later ones, because their writes go on to be checked less: by
// clients, by the reload, and by status, for as long as they are connected.
func TestClientsThatBeganBeforeAReload(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE work (n int)")
	for _, args := range [][]string{{"pause", "queue", "--new"}, {"resume", "queue"}, {"guard", "add", "--resource", "queue", "--table", "public.work"}} {
		if out := runCommand(t, nil, append(args, "--dsn", s.DSN(pgtest.Superuser, db))...); out.code != exitOK {
			t.Fatalf("%v: %s%s", args, out.stdout, out.stderr)
		}
	}
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Resources = map[string]config.Resource{"billing": {Enforce: "shadow"}, "queue": {Fence: "tables"}}
		c.Unfenced.Default, c.Unfenced.Users = "allow", map[string]string{pgtest.App: "allow"}
	})
	connect := func() (all []*pgx.Conn) {
		for _, resource := range []string{"billing", "queue", "mail", ""} {
			params := "application_name=" + resource
			if resource != "" {
				params += "&fencepost.resource=" + resource + "&fencepost.worker=" + fmt.Sprint(len(clientsOf(t, r)))
			}
			all = append(all, r.Connect(t, db, params))
		}
		return all
	}
	fences := func(want string) {
		t.Helper()
		all := clientsOf(t, r)
		if got := strings.Join([]string{all["billing"].Fence, all["queue"].Fence, all["mail"].Fence, all[""].Fence}, " "); got != want {
			t.Errorf("the writes are refused by %q, want %q", got, want)
		}
	}
	notes := []string{db + "/billing: shadow: nothing is refused on 1 connections", db + "/queue: fence: tables: workers that do not lead may write what is not guarded on 1 connections"}
	noted := func() (n int) {
		out := runCommand(t, nil, "status", "--admin", r.AdminAddress().String())
		for _, note := range notes {
			n += strings.Count(out.stdout, note)
		}
		return n
	}
	early := connect()
	fences("shadow tables session allow")
	cfg := r.Config()
	cfg.Resources, cfg.Unfenced.Default, cfg.Unfenced.Users = nil, "read-only", nil
	r.SetConfig(cfg)
	out := runCommand(t, nil, "reload", "--admin", r.AdminAddress().String())
	for setting, mode := range map[string]string{"resources.billing.enforce": "shadow", "resources.queue.fence": "tables", "unfenced.default": "allow", "unfenced.users." + pgtest.App: "allow"} {
		says := fmt.Sprintf("applied, but not to open connections that began with %s: 1 (fencepost clients)\n", mode)
		if _, line, _ := strings.Cut(out.stdout, setting+": "); !strings.HasPrefix(line[strings.Index(line, ": ")+2:], says) {
			t.Errorf("the reload does not say of %s that %q:\n%s", setting, says, out.stdout)
		}
	}
	if strings.Count(out.stdout, "not to open connections") != 4 || out.code != exitOK {
		t.Errorf("exit code %d:\n%s", out.code, out.stdout)
	}
	fences("shadow tables session allow")
	if n := noted(); n != len(notes) {
		t.Errorf("status has %d of %q", n, notes)
	}
	for _, conn := range early {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	servicetest.Eventually(t, "the early ones to be gone", func() bool { return len(clientsOf(t, r)) == 0 })
	connect()
	fences("session session session read-only")
	if n := noted(); n != 0 {
		t.Errorf("status still has %d of %q", n, notes)
	}
}
