package drivers

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// scenario is one thing that every driver does, with its expected result, which is the
// same for all drivers, directly and through Fencepost. So two runs that both did
// nothing cannot be taken for two runs that agree.
type scenario struct {
	name   string
	does   string
	result string // JSON
	lacks  map[string]string
}

// What several drivers lack.
const (
	noPipeline = "sends one message after the other"
	syncEach   = "has a Sync behind each query of a pipeline"
)

var scenarios = []scenario{
	{"types", "typed parameters and results of INSERT ... RETURNING",
		`{"int4": 7, "int8": "9007199254740993", "numeric": "12.50", "text": "h\u00e9llo; -- '$1", "bool": true, "bytea": "00ff27",
		  "timestamptz": "2020-02-03T04:05:06.789Z", "jsonb": {"x": [1, null]}, "array": [1, 2, 3],
		  "uuid": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "null": null}`, nil},
	{"prepared", "one prepared UPDATE ... RETURNING, run twelve times",
		`{"balances": [101, 102, 103, 105, 107, 109, 112, 115, 118, 122, 126, 130]}`, nil},
	{"batch", "fifty INSERTs in one batch of extended messages",
		`{"affected": 50, "count": 50}`, map[string]string{"psql": noPipeline, "lib/pq": noPipeline}},
	{"batch_error", "a batch whose middle fails: nothing of it stays",
		`{"sqlstate": "23505", "rows": 0, "usable": 1}`, map[string]string{
			"psql": noPipeline, "lib/pq": noPipeline, "node pg": syncEach, "postgres.js": syncEach,
		}},
	{"pipeline", "three statements in flight, each with its own Sync; the middle one fails",
		`{"results": ["ok", "22012", "ok"], "rows": 2}`, map[string]string{
			"psql": noPipeline, "lib/pq": noPipeline, "pgjdbc": "has one Sync for a batch",
		}},
	{"multi", "several statements in one Query, with its own BEGIN and COMMIT and an error behind them",
		`{"first": 1, "balance": 107, "last": 2, "sqlstate": "22012", "rows": 1}`, nil},
	{"copy_in", "COPY FROM STDIN of a thousand rows",
		`{"copied": 1000, "rows": 1000}`, nil},
	{"copy_error", "COPY FROM STDIN with a duplicate key",
		`{"sqlstate": "23505", "rows": 100, "usable": 1}`, map[string]string{"postgres.js": "does not tell that the server refused a COPY at its end"}},
	{"copy_fail", "COPY FROM STDIN that the client gives up",
		`{"rows": 0, "usable": 1}`, map[string]string{"psql": "cannot give up a COPY", "lib/pq": "closes the connection in order to give up a COPY"}},
	{"copy_out", "COPY TO STDOUT",
		`{"rows": 100, "first": "1\t100", "last": "100\t100"}`, map[string]string{"lib/pq": "refuses COPY TO"}},
	{"cursor", "a hundred rows by sevens, with an UPDATE between",
		`{"rows": 100, "sum": 5050, "updated": 10}`, nil},
	{"savepoint", "an error behind a savepoint, rolled back to it",
		`{"sqlstate": "22012", "balances": [1, 100, 3]}`, nil},
	{"transaction", "isolation levels, and a read-only transaction that refuses",
		`{"levels": ["serializable", "repeatable read"], "readonly": "25006", "balance": 102}`, nil},
	{"error", "the fields of an error; the transaction it aborts",
		`{"sqlstate": "42703", "duplicate": "23505", "constraint": "account_pkey", "aborted": "25P02", "rows": 0}`, nil},
	{"cancel", "an UPDATE cancelled while it runs",
		`{"sqlstate": "57014", "balance": 100, "usable": 1}`, nil},
	{"notify", "LISTEN; notifications of another session and of its own",
		`{"payloads": ["one", "two"]}`, nil},
	{"large_object", "a large object written, read at a position, truncated and removed",
		`{"size": 100000, "read": "56789", "truncated": 10, "gone": "42704"}`, nil},
	{"alone", "what runs outside of transactions: VACUUM, CREATE INDEX CONCURRENTLY, CALL with COMMIT",
		`{"rows": 3, "index": 1}`, nil},
	{"model", "a table that is made and changed by the library, with a row and a duplicate",
		`{"first": 1, "sqlstate": "23505", "columns": ["doc", "id", "more", "name"], "rows": 1}`, nil},
}

// runs names the scenarios of those drivers and libraries that stand on another driver of the
// list or on libpq, so that most of the list would only be the same again.
var runs = map[string]string{
	"PDO":        "prepared copy_in copy_out cursor savepoint error",
	"DBD::Pg":    "prepared copy_in copy_error copy_out savepoint error cancel notify large_object",
	"psqlODBC":   "prepared cursor savepoint error",
	"Django":     "copy_in copy_out cursor savepoint error model",
	"Knex":       "prepared savepoint transaction error model",
	"pg-promise": "prepared savepoint transaction error model",
	"Sequelize":  "prepared savepoint transaction error model",
	"TypeORM":    "prepared savepoint transaction error model",
}

// standsOnAnother reports whether the driver meets the errors of another one of the list, or of libpq.
func (d driver) standsOnAnother() bool { return runs[d.name] != "" }

// scenarios returns those that the driver's program runs: all but model if runs does not name it.
func (d driver) scenarios() []scenario {
	return slices.DeleteFunc(slices.Clone(scenarios), func(s scenario) bool {
		if names, ok := runs[d.name]; ok {
			return !slices.Contains(strings.Fields(names), s.name)
		}
		return s.name == "model"
	})
}

// line is what a program prints about a scenario.
type line struct {
	Scenario string `json:"scenario"`
	Ready    bool   `json:"ready,omitempty"`
	Lacks    string `json:"lacks,omitempty"`  // what the driver does not support
	Failed   string `json:"failed,omitempty"` // the scenario ended in an unexpected way
	Result   any    `json:"result,omitempty"`
	Detail   any    `json:"detail,omitempty"`
}

func (l line) String() string {
	text, err := json.Marshal(l)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// run runs a part of a driver's program to its end, and returns its lines.
func (d driver) run(t testing.TB, part string, env []string) []line {
	t.Helper()
	return d.start(t, part, env).lines(t)
}

// run is a running part of a driver's program.
type run struct {
	*process.Logged
	answer func(string) error // writes a line to its standard input
	ready  chan struct{}
	got    *[]line // read it after Wait
}

func (d driver) start(t testing.TB, part string, env []string) run {
	t.Helper()
	r := run{ready: make(chan struct{}, 1), got: new([]line)}
	r.Logged, r.answer = d.launch(t, part, env, func(l line) {
		if l.Ready {
			r.ready <- struct{}{}
		} else {
			*r.got = append(*r.got, l)
		}
	})
	return r
}

// launch starts a part of the driver's program. It calls take with each line, in order,
// in another goroutine than the test's; answer writes a line to the standard input.
func (d driver) launch(t testing.TB, part string, env []string, take func(line)) (_ *process.Logged, answer func(string) error) {
	t.Helper()
	args, more := d.command(t)
	cmd := exec.Command(args[0], append(args[1:], part)...)
	if cmd.Err != nil {
		t.Fatalf("find %s (`make drivers` installs what is missing): %v", args[0], cmd.Err)
	}
	cmd.Env = process.Environment(slices.Concat(env, more)...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("open a pipe: %v", err)
	}
	logged := process.StartLogged(t, strings.Join(cmd.Args, " "), cmd, func(text string) {
		var l line
		if json.Unmarshal([]byte(text), &l) == nil { // the rest is output of the language's own runtime
			take(l)
		}
	})
	return logged, func(text string) error {
		_, err := fmt.Fprintln(stdin, text)
		return err
	}
}

// lines waits until the program has ended and returns what it printed.
func (r run) lines(t testing.TB) []line {
	t.Helper()
	if code := r.Wait(t); code != 0 {
		t.Fatalf("%s ended with code %d; it printed:\n%s", r.Name, code, process.Tail(r.Log()))
	}
	return *r.got
}

func TestDriversMeetTheSameAsAtPostgres(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	proxy := serve(t, pg)
	for _, d := range drivers {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			direct, leader := newCluster(t, pg, proxy), newCluster(t, pg, proxy)
			want := d.run(t, "scenarios", direct.at(t, pg.Addr(), ""))
			got := d.run(t, "scenarios", leader.at(t, proxy.Address, "leader-1"))
			d.compare(t, want, got)
			if epoch := leader.ask(t, "SELECT max(epoch)::text || ' ' || count(*) FROM fencepost.grants"); epoch != "1 1" {
				t.Errorf("the highest epoch and the number of grants are %s, want 1 1, because it led throughout", epoch)
			}
		})
	}
}

// compare compares both runs with the list, and with each other.
func (d driver) compare(t *testing.T, direct, leader []line) {
	t.Helper()
	scenarios := d.scenarios()
	if len(direct) != len(scenarios) || len(leader) != len(scenarios) {
		t.Fatalf("%d scenarios ran directly and %d through Fencepost, want %d:\n%v\n%v", len(direct), len(leader), len(scenarios), direct, leader)
	}
	for i, s := range scenarios {
		if !reflect.DeepEqual(direct[i], leader[i]) {
			t.Errorf("%s (%s):\n directly           %v\n through Fencepost  %v", s.name, s.does, direct[i], leader[i])
		}
		for where, l := range map[string]line{"directly": direct[i], "through Fencepost": leader[i]} {
			if fault := d.fault(s, l); fault != "" {
				t.Errorf("%s (%s), %s: %s\n  %v", s.name, s.does, where, fault, l)
			}
		}
	}
}

// fault returns how a line differs from the list, "" if it does not.
func (d driver) fault(s scenario, l line) string {
	var want any
	if err := json.Unmarshal([]byte(s.result), &want); err != nil {
		return "the list is no JSON: " + err.Error()
	}
	switch lacks := s.lacks[d.name]; {
	case l.Scenario != s.name:
		return "want the scenario " + s.name
	case l.Lacks != lacks:
		return fmt.Sprintf("it says that it lacks %q, the list says %q", l.Lacks, lacks)
	case lacks == "" && !reflect.DeepEqual(l.Result, want):
		return "want the result " + strings.Join(strings.Fields(s.result), " ")
	}
	return ""
}
