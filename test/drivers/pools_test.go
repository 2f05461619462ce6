package drivers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// poolEvent is something that happens to a worker with a pool. play returns when the cause is
// over: the other worker has left, the application goes on, Fencepost or Postgres accepts
// connections.
type poolEvent struct {
	name string
	play func(t *testing.T, p *pool)
}

var poolEvents = []poolEvent{
	{name: "takeover", play: func(t *testing.T, p *pool) {
		p.toggle(t)
		other := p.supersede(t)
		p.toggle(t)
		p.refused(t)
		leave(t, other)
	}},
	{name: "proxy restart", play: func(t *testing.T, p *pool) {
		p.proxy.End()
		p.serve(t, p.proxy.Address)
	}},
	{name: "Postgres restart", play: func(t *testing.T, p *pool) { p.pg.Restart(t) }},
}

// pause is how long a pool waits between its attempts to connect: longer after each one that
// failed.
type pause struct{ first, most time.Duration }

// String returns the pause as docs/pools.md has it.
func (p pause) String() string {
	if p.most == 0 {
		return "none"
	}
	return fmt.Sprintf("%v to %v", p.first, p.most)
}

func leave(t testing.TB, other *pgx.Conn) {
	t.Helper()
	if err := other.Close(context.Background()); err != nil {
		t.Fatalf("the other worker leaves: %v", err)
	}
}

// pooled is a pool with its row in docs/pools.md: what its application sees at each
// event.
type pooled struct {
	name    string
	part    string
	command func(t testing.TB) (args, env []string)
	sees    []string // as poolEvents
	pause   pause    // the zero value: it connects whenever the application needs a connection
}

func nodePool(program string) func(testing.TB) (args, env []string) {
	return func(t testing.TB) (args, env []string) {
		return []string{"node", "node/" + program}, []string{"NODE_PATH=" + nodeModules(t)}
	}
}

func pythonPool(program string) func(testing.TB) (args, env []string) {
	return func(testing.TB) (args, env []string) { return python(program) }
}

// alchemy2 uses the SQLAlchemy of scripts/drivers.sh. Debian 12 has an older one.
func alchemy2(t testing.TB) (args, env []string) {
	args, env = python("pool_sqlalchemy.py")
	modules, err := filepath.Abs("../../.cache/drivers/python")
	if err == nil {
		_, err = os.Stat(filepath.Join(modules, "sqlalchemy"))
	}
	if err != nil {
		t.Fatalf("run make fetch-drivers: %v", err)
	}
	return args, append(env, "PYTHONPATH="+modules)
}

func goPool(name string) func(testing.TB) (args, env []string) {
	return func(t testing.TB) (args, env []string) { return []string{goDrivers.path(t), name}, nil }
}

// throughLibpq is what is seen through psycopg 2 and 3, which give no SQLSTATE of an error that ends
// the connection.
var throughLibpq = []string{
	"`OperationalError`, `ZF002`…, `ZF003`",
	"(`OperationalError`…)",
	"`OperationalError`…",
}

var pools = []pooled{
	{"node `pg`, `pool.query`", "query", nodePool("pool_pg.js"), []string{
		"`ZF001`, `ZF002`…, `ZF003`…",
		"(`57P01`), (`Connection terminated unexpectedly`), (`ECONNREFUSED`…), (`ECONNRESET`)",
		"(`57P01`), (`57P03`…), (`Connection terminated unexpectedly`)",
	}, pause{}},
	{"node `pg`, `pool.connect`", "connect", nodePool("pool_pg.js"), []string{
		"`ZF001`, `ZF002`…, `ZF003`…, (`Connection terminated unexpectedly`)",
		"(`57P01`), (`Connection terminated unexpectedly`), (`ECONNREFUSED`…), (`ECONNRESET`)",
		"(`57P01`), (`57P03`…), (`Connection terminated unexpectedly`)",
	}, pause{}},
	{"`database/sql` with lib/pq", "pool", goPool("libpq"), []string{
		"`ZF002`…, `ZF003`",
		"(`EOF`), (`ECONNREFUSED`…), (`ECONNRESET`)",
		"(`57P03`…), (`EOF`)",
	}, pause{}},
	{"pgxpool", "pool", goPool("pgx"), []string{
		"(`ZF001`), `ZF002`…, `ZF003`",
		"(`57P01`), (`EOF`), (`ECONNREFUSED`…), (`ECONNRESET`)",
		"(`57P01`), (`57P03`…), (`EOF`)",
	}, pause{}},
	{"asyncpg", "pool", pythonPool("pool_asyncpg.py"), []string{
		"`08003`, `ZF002`…, `ZF003`",
		"(`57P01`), (`08003`), (`ConnectionRefusedError`…), (`ConnectionResetError`), (`InternalClientError`)",
		"(`57P01`), (`57P03`…), (`08003`), (`InternalClientError`)",
	}, pause{}},
	{"SQLAlchemy 1 with psycopg 2", "psycopg2", pythonPool("pool_sqlalchemy.py"), throughLibpq, pause{}},
	{"SQLAlchemy 2 with psycopg 3", "psycopg", alchemy2, throughLibpq, pause{}},
	{"psycopg_pool with psycopg 3", "pool", pythonPool("pool_psycopg.py"), throughLibpq, pause{time.Second, 5 * time.Minute}},
	{"HikariCP with pgjdbc", "pool", func(t testing.TB) (args, env []string) {
		return []string{"java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", javaPrograms.path(t) + ":" + hikariJars, "drivers.Hikari"}, nil
	}, []string{
		"(`ZF001`), `ZF002`…, `ZF003`",
		"(`57P01`), (`08006`)",
		"(`57P01`), (`08006`)",
	}, pause{250 * time.Millisecond, 10 * time.Second}},
	{"node `postgres`", "pool", nodePool("pool_postgres.js"), []string{
		"`CONNECTION_CLOSED`, `ZF001`, `ZF002`…, `ZF003`",
		"(`57P01`), (`CONNECTION_CLOSED`), (`ECONNREFUSED`…), (`ECONNRESET`)",
		"(`57P01`), (`57P03`…), (`CONNECTION_CLOSED`)",
	}, pause{10 * time.Millisecond, 20 * time.Second}},
	{"ActiveRecord", "pool", func(testing.TB) (args, env []string) { return []string{"ruby", "ruby/pool_activerecord.rb"}, nil }, []string{
		"`ZF002`…, `ZF003`, (`ActiveRecord::StatementInvalid`)",
		"(`ActiveRecord::ConnectionNotEstablished`…), (`ActiveRecord::StatementInvalid`)",
		"`ActiveRecord::ConnectionNotEstablished`…, (`ActiveRecord::StatementInvalid`)",
	}, pause{}},
}

// TestPoolsRecover checks what an application sees through its pool when something
// happens, and that it then writes again by itself, and only under its own epochs.
func TestPoolsRecover(t *testing.T) {
	t.Parallel()
	for _, pooled := range pools {
		t.Run(strings.ReplaceAll(pooled.name, "/", " "), func(t *testing.T) {
			t.Parallel()
			p := startPool(t, driver{pooled.name, pooled.command}, pooled.part, pgtest.Start(t))
			// The takeover comes last: a proxy that is started after it refuses each connection of the pool once (ZF003),
			// because another worker has led since the pool did first.
			for i, event := range slices.Backward(poolEvents) {
				t.Log(event.name)
				from := len(p.since(0))
				event.play(t, p)
				p.works(t)
				t.Run(event.name, func(t *testing.T) { compareSeen(t, p.since(from), pooled.sees[i]) })
			}
			p.wroteUnderItsEpochs(t)
		})
	}
}

// seldom is how often an error may occur that does not last as long as its cause: some
// times on each connection.
const seldom = 3 * connections

// poolCell is a code in a cell of the table: `code`, with an ellipsis if it may occur as
// long as its cause lasts, in brackets if it does not occur each time.
var poolCell = regexp.MustCompile("(\\(?)`([^`]+)`(\u2026?)")

// compareSeen compares results with a cell of the table.
func compareSeen(t *testing.T, results []string, cell string) {
	t.Helper()
	seen := map[string]int{}
	for _, result := range results {
		if result != "ok" {
			seen[result]++
		}
	}
	t.Logf("it saw %v", seen)
	for _, match := range poolCell.FindAllStringSubmatch(cell, -1) {
		sometimes, code, lasts := match[1] != "", match[2], match[3] != ""
		switch n := seen[code]; {
		case n == 0 && !sometimes:
			t.Errorf("it did not see %s", code)
		case n > seldom && !lasts:
			t.Errorf("it saw %s %d times, want at most %d", code, n, seldom)
		}
		delete(seen, code)
	}
	if len(seen) > 0 {
		t.Errorf("it saw %v too; the table has %q", seen, cell)
	}
	if t.Failed() {
		t.Logf("its results: %s", process.Tail(strings.Join(results, " ")))
	}
}

// TestPoolsAreDocumented compares the table in docs/pools.md with the one above.
func TestPoolsAreDocumented(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	row := func(name string, cells []string) {
		fmt.Fprintf(&table, "| %s | %s |\n", name, strings.Join(cells, " | "))
	}
	var head, rule []string
	for _, event := range poolEvents {
		head, rule = append(head, event.name), append(rule, "---")
	}
	row("pool", append(head, "pause"))
	row("---", append(rule, "---"))
	for _, pooled := range pools {
		row(pooled.name, append(slices.Clone(pooled.sees), pooled.pause.String()))
	}
	text, err := os.ReadFile("../../docs/pools.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n\n"+strings.ReplaceAll(table.String(), "| --- ", "|---")+"\n") {
		t.Errorf("docs/pools.md does not have the table:\n%s", table.String())
	}
}

// wroteUnderItsEpochs checks that every row of the pool has an epoch that was granted to
// it. So nothing was written between its supersession and its next epoch.
func (p *pool) wroteUnderItsEpochs(t *testing.T) {
	t.Helper()
	p.program.Kill(t)
	if rows := p.ask(t, `SELECT count(*)::text FROM work w JOIN fencepost.grants g USING (epoch)
		WHERE g.worker <> CASE w.what WHEN 'other' THEN 'other-1' ELSE 'pool-1' END`); rows != "0" {
		t.Errorf("%s rows have another worker's epoch", rows)
	}
}
