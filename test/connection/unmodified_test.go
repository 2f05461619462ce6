package connection

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// program is a client program of the default server's version: it serves all.
func program(t *testing.T, name string) string {
	t.Helper()
	return pgtest.Shared(t).Program(t, name)
}

// leading makes worker "w" the leader and keeps it connected for the test.
func leading(t *testing.T, p *fixture.Proxy, db string) {
	t.Helper()
	fixture.LeaderConn(t, p, db)
}

// client runs a program of PostgreSQL as worker "w", and returns what it wrote
// to stdout and stderr. A failure or a word of an error fails the test.
func client(t *testing.T, p *fixture.Proxy, db, name, input string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	host, port, _ := net.SplitHostPort(p.Addr)
	cmd := osexec.CommandContext(ctx, program(t, name), args...)
	cmd.Env = append(os.Environ(), "PGHOST="+host, "PGPORT="+port, "PGUSER="+pgtest.App, "PGDATABASE="+db,
		"PGOPTIONS=-c fencepost.resource=r -c fencepost.worker=w", "LC_ALL=C.UTF-8")
	cmd.Dir = t.TempDir()
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out.String())
	}
	return out.String()
}

// number reads one number of the database, past the proxy.
func number(t *testing.T, p *fixture.Proxy, db, sql string) (n int64) {
	t.Helper()
	conn := p.PG.Connect(t, pgtest.Superuser, db)
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

var processed = regexp.MustCompile(`number of transactions actually processed: (\d+)`)

// runPgbench runs pgbench and checks that all of its transactions were processed.
func runPgbench(t *testing.T, p *fixture.Proxy, db string, clients, each int, args ...string) {
	t.Helper()
	args = append(args, "-n", "-c", fmt.Sprint(clients), "-j", "1", "-t", fmt.Sprint(each))
	out := client(t, p, db, "pgbench", "", args...)
	m := processed.FindStringSubmatch(out)
	if m == nil || m[1] != fmt.Sprint(clients*each) || !strings.Contains(out, "number of failed transactions: 0 ") || strings.Contains(out, "error") {
		t.Errorf("pgbench %v:\n%s", args, out)
	}
}

func TestPgbenchAsLeader(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	leading(t, p, db)
	out := client(t, p, db, "pgbench", "", "-i", "-s", "1", "--foreign-keys")
	if !strings.Contains(out, "done in") || number(t, p, db, "select count(*) from pgbench_accounts") != 100000 {
		t.Errorf("pgbench -i:\n%s", out)
	}
	const clients, each = 4, 60
	runs := int64(0)
	for _, mode := range []string{"simple", "extended", "prepared"} {
		runPgbench(t, p, db, clients, each, "-M", mode)
		runs += clients * each
	}
	if n := number(t, p, db, "select count(*) from pgbench_history"); n != runs {
		t.Errorf("%d rows of history for %d transactions", n, runs)
	}
	for sum, want := range map[string]string{
		"select sum(abalance) from pgbench_accounts": "select sum(delta) from pgbench_history",
		"select sum(tbalance) from pgbench_tellers":  "select sum(bbalance) from pgbench_branches",
	} {
		if got, want := number(t, p, db, sum), number(t, p, db, want); got != want {
			t.Errorf("%s is %d, want %d", sum, got, want)
		}
	}
	if all := p.Audited(t, db); len(all) > 0 {
		t.Errorf("a leader was refused: %+v", all)
	}
}

// TestPgbenchPipelines runs a script that pipelines, with a transaction inside.
func TestPgbenchPipelines(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	leading(t, p, db)
	client(t, p, db, "psql", "create table t (client int, n int); create table s (n bigint); insert into s values (0)")
	script := filepath.Join(t.TempDir(), "pipeline.sql")
	const text = `\startpipeline
begin;
insert into t values (:client_id, 1);
update s set n = n + 1;
commit;
insert into t values (:client_id, 2);
\endpipeline
select n from s \gset
insert into t values (:client_id, least(:n, 3));
`
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"extended", "prepared"} {
		runPgbench(t, p, db, 4, 30, "-M", mode, "-f", script)
	}
	if n := number(t, p, db, "select count(*) from t"); n != 3*2*4*30 {
		t.Errorf("%d rows, want %d", n, 3*2*4*30)
	}
	if n := number(t, p, db, "select n from s"); n != 2*4*30 {
		t.Errorf("counted to %d, want %d", n, 2*4*30)
	}
}
