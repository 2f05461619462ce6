package drivers

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// overtake starts a part of a driver's program, which leads, waits until it is ready, and has
// another worker lead and write, because the program is silent.
func (h *cluster) overtake(t *testing.T, d driver, part string) (stale run, next *pgx.Conn) {
	t.Helper()
	stale = d.start(t, part, h.at(t, h.proxy.Address, "stale-1", "fencepost.worker_timeout=300ms"))
	stale.awaitReady(t)
	next = h.join(t, "next-1", "campaign", "wait")
	if _, err := next.Exec(context.Background(), "UPDATE account SET balance = 102 WHERE id = 1"); err != nil {
		t.Fatalf("the next leader's write: %v", err)
	}
	return stale, next
}

// goOn lets the program go on, and returns what it has printed when it has ended.
func (r run) goOn(t *testing.T) []line {
	t.Helper()
	if err := r.answer("go on"); err != nil {
		t.Fatalf("let it go on: %v\n%s", err, r.Log())
	}
	return r.lines(t)
}

// only checks that a program has printed one line with this result, except for known
// deviations of the driver.
func (d driver) only(t *testing.T, lines []line, name string, want map[string]any) {
	t.Helper()
	for key, value := range otherwise[d.name][name] {
		want[key] = value
		if value == untold {
			delete(want, key)
		}
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var result any // decoded like a program's line
	if err := json.Unmarshal(text, &result); err != nil {
		t.Fatal(err)
	}
	expected := line{Scenario: name, Result: result}
	if len(lines) != 1 || !reflect.DeepEqual(lines[0], expected) {
		t.Errorf("it printed\n %v\nwant\n %v", lines, expected)
	}
}

// untold marks what a driver's program does not tell.
const untold = "untold"

// otherwise lists known deviations of drivers, by part.
var otherwise = map[string]map[string]map[string]any{
	"psql": {"follower": {"batch": "lacks"}},
	"lib/pq": {
		"follower": {"batch": "lacks"},
		// It replaces every FATAL of the server by driver.ErrBadConn.
		"stale":             {"sqlstate": "driver: bad connection", "severity": ""},
		"stale_transaction": {"sqlstate": "driver: bad connection", "severity": ""},
	},
	"postgres.js": {
		"stale":             {"sqlstate": "CONNECTION_CLOSED", "severity": nil},
		"stale_transaction": {"sqlstate": "CONNECTION_CLOSED", "severity": nil},
	},
	"psycopg": {
		// Of a FATAL it keeps only libpq's text.
		"stale":             {"sqlstate": "worker stale-1 was superseded on resource billing", "severity": nil},
		"stale_transaction": {"sqlstate": "worker stale-1 was superseded on resource billing", "severity": nil},
	},
	"PDO":        {"follower": {"batch": untold, "severity": untold}, "stale_transaction": {"sqlstate": "HY000", "severity": untold}},
	"DBD::Pg":    {"follower": {"batch": untold, "severity": untold}, "stale_transaction": {"sqlstate": "08000", "severity": untold}},
	"psqlODBC":   {"follower": {"batch": untold, "copy": untold, "severity": untold}, "stale_transaction": {"sqlstate": "HY000", "severity": untold}},
	"Django":     {"follower": {"batch": untold, "copy": untold, "simple": untold, "severity": untold}, "stale_transaction": {"sqlstate": "OperationalError", "severity": untold}},
	"Knex":       ofModels,
	"pg-promise": ofModels,
	"Sequelize":  ofModels,
	"TypeORM":    ofModels,
}

// ofModels is what the libraries of node do not tell, and that they cannot make a table.
var ofModels = map[string]map[string]any{
	"follower":          {"batch": untold, "copy": untold, "severity": untold, "model": "ZF002"},
	"stale_transaction": {"broken": untold},
}

func TestSafetyDriversOfAFollowerAreRefusedAndGoOn(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, pg *pgtest.Server, proxy *process.Server) {
		for _, d := range drivers {
			if d.standsOnAnother() && pg != pgtest.Shared(t) {
				continue
			}
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				h := newCluster(t, pg, proxy)
				leader := h.join(t, "leader-1")
				lines := d.run(t, "follower", h.at(t, proxy.Address, "follower-1"))
				d.only(t, lines, "follower", map[string]any{
					"role": "follower", "read": 100, "write": "ZF002", "severity": "ERROR", "simple": "ZF002", "batch": "ZF002",
					"copy": "ZF002", "transaction": "ZF002", "kept": true, "again": 100,
				})
				if sum := h.ask(t, "SELECT sum(balance) || ' in ' || count(*) FROM account"); sum != "10000 in 100" {
					t.Errorf("the accounts contain %s, want 10000 in 100: a follower wrote", sum)
				}
				if _, err := leader.Exec(context.Background(), "UPDATE account SET balance = 1 WHERE id = 1"); err != nil {
					t.Errorf("the leader's write: %v", err)
				}
			})
		}
	})
}

func TestSafetyDriversLearnThatTheyWereSuperseded(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	proxy := serve(t, pg)
	for _, d := range drivers {
		for _, part := range []string{"stale", "stale_transaction"} {
			if d.standsOnAnother() && part == "stale" {
				continue
			}
			t.Run(d.name+" "+part, func(t *testing.T) {
				t.Parallel()
				h := newCluster(t, pg, proxy)
				stale, _ := h.overtake(t, d, part)
				d.only(t, stale.goOn(t), part, map[string]any{
					"sqlstate": "ZF001", "severity": "FATAL", "broken": true, "role": "follower", "again": "ZF002",
				})
				if balance := h.ask(t, "SELECT balance::text FROM account WHERE id = 1"); balance != "102" {
					t.Errorf("the balance is %s, want the next leader's 102", balance)
				}
			})
		}
	}
}

// database/sql repeats a statement on another connection when lib/pq reports the
// connection as bad, which it does at every FATAL. If the next leader has left by then,
// that new connection leads. Only the epoch that was announced to the worker can then
// prevent a write that was decided earlier.
func TestSafetyAPoolThatRepeatsTheStaleWriteIsRefused(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	proxy := serve(t, pg)
	d := drivers[2]
	h := newCluster(t, pg, proxy)
	stale, next := h.overtake(t, d, "stale_repeated")
	if err := next.Close(context.Background()); err != nil {
		t.Fatalf("the next leader leaves: %v", err)
	}
	process.Eventually(t, process.Patience, "the lease of the next leader is released", func() bool {
		return h.ask(t, "SELECT (vacancy <> 'held' OR worker <> 'next-1')::text FROM fencepost.lease") == "true"
	})
	d.only(t, stale.goOn(t), "stale_repeated", map[string]any{"sqlstate": "ZF003", "severity": "ERROR"})
	if balance := h.ask(t, "SELECT balance::text FROM account WHERE id = 1"); balance != "102" {
		t.Errorf("the balance is %s, want the next leader's 102", balance)
	}
}

// awaitReady waits until the program has read and waits to be superseded.
func (r run) awaitReady(t testing.TB) {
	t.Helper()
	select {
	case <-r.ready:
	case <-r.Done:
		t.Fatalf("the program ended before it was superseded:\n%s", process.Tail(r.Log()))
	case <-time.After(process.Patience):
		t.Fatalf("the program did not get ready within %s:\n%s", process.Patience, process.Tail(r.Log()))
	}
}
