package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/handover"
	"github.com/fencepost/fencepost/internal/admin"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// TestCommandsSayWhatIsMissing, or wrong with their flags.
func TestCommandsSayWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want string
	}{
		{"evict", "no resource given"},
		{"pause --database d", "no resource given"},
		{"resume billing", "give either --database, with the configuration, or --dsn"},
		{"evict billing --database d --dsn x", "give either --database, with the configuration, or --dsn"},
		{"evict billing --database d --for 10", "use a duration such as"},
		{"evict billing --database d --for 0d", "use a duration such as"},
		{"evict billing other --database d", `unexpected argument "other"`},
		{"handover --to b --database d", "no resource given"},
		{"handover billing --database d", "--to is required"},
		{"handover billing --to b", "give either --database, with the configuration, or --dsn"},
		{"handover billing --to b --database d --for soon", "use a duration such as"},
		{"handover billing --to b --database d --for 2h", "use at most 1h0m0s"},
		{"handover billing --to b --database d --timeout 0s", "use more than 0s"},
		{"resource", "no action given"},
		{"resource remove billing", `unexpected argument "remove"`},
		{"resource rm --database d", "no resource given"},
		{"resource list billing --database d", `unexpected argument "billing"`},
		{"guard", "no action given"},
		{"guard list", "--dsn is required"},
		{"guard add --dsn x --resource billing", "--table is required"},
		{"guard add --dsn x --table public.t", "--resource is required"},
		{"guard remove --dsn x --table public.t --warn", "flag provided but not defined"},
		{"ledger", "no action given"},
		{"ledger prune --database d", "--keep is required"},
		{"ledger prune --database d --keep 3w", "use a duration such as"},
		{"ledger prune --database d --keep 23h", "at least a day"},
		{"generation bump", "--database is required"},
		{"generation bump --above 7", "--database is required"},
		{"generation bump --database d --above -1", "an epoch must be positive"},
		{"generation bump --database d --above 4611686018427387905", "the highest possible is 4611686018427387904"},
		{"generation bump --database d --above 7 --restored", "mutually exclusive"},
		{"generation dump", "unexpected argument"},
		{"audit", "--dsn is required"},
		{"audit --dsn x --since yesterday", `--since is "yesterday": give a time`},
		{"audit --dsn x --since -1h", `--since is "-1h"`},
		{"audit --dsn x --table public.t", "--table is only for --verify"},
		{"audit --dsn x --verify --worker w", "--verify takes no --worker"},
		{"audit --dsn x billing", `unexpected argument "billing"`},
		{"raft", "no action given"},
		{"raft join", `unexpected argument "join"`},
		{"raft remove", "no node given"},
		{"raft status", "election.provider is postgres"},
	} {
		out := runCommand(t, nil, strings.Fields(c.args)...)
		if out.code != exitUsage || !strings.Contains(out.stderr, c.want) {
			t.Errorf("%s: code %d, %q does not contain %q", c.args, out.code, out.stderr, c.want)
		}
	}
}

// TestOrdersSayWhoseRoleTheyWant: a role that does not own the schema is told which one does, and not to
// migrate.
func TestOrdersSayWhoseRoleTheyWant(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	for _, order := range []string{"evict billing", "pause billing", "resource list", "ledger prune --keep 30d"} {
		out := runCommand(t, nil, append(strings.Fields(order), "--dsn", s.DSN(pgtest.App, db))...)
		if out.code != exitFailure || !strings.Contains(out.stderr, `Connect as "`+pgtest.Control+`"`) || strings.Contains(out.stderr, "migrate") {
			t.Errorf("%s: code %d: %s", order, out.code, out.stderr)
		}
	}
}

// TestResourceListShowsAHandover that is in force, to a worker that has not taken the lead.
func TestResourceListShowsAHandover(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", `WITH o AS (
			INSERT INTO fencepost.orders (kind, resource, worker, asked_by, reason) VALUES ('handover', 'billing', 'b', 'ops', 'drill') RETURNING id)
		INSERT INTO fencepost.offers (fence, worker, epoch, begins, until, order_id)
			SELECT f.id, 'b', f.epoch, clock_timestamp(), clock_timestamp() + interval '1 hour', o.id FROM o, fencepost.fence f`)
	list := func() string {
		return runCommand(t, nil, "resource", "list", "--dsn", s.DSN(pgtest.Control, db)).stdout
	}
	if out := list(); !strings.Contains(out, "handed over to worker b, if it takes the lead before ") || !strings.Contains(out, "by ops: drill") {
		t.Errorf("while the hand-over is in force: %s", out)
	}
	s.Exec(t, pgtest.Control, db, "UPDATE fencepost.offers SET until = clock_timestamp()")
	if out := list(); strings.Contains(out, "handed over") {
		t.Errorf("after it has run out: %s", out)
	}
}

// TestAPauseWithoutWorkersIsShownAsItIs: since when it lasts, and that it is over, at once, whether a worker has used the resource
// at this proxy before or not.
func TestAPauseWithoutWorkersIsShownAsItIs(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	r := servicetest.Start(t, s, nil)
	if err := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a").Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('mail')")
	order := func(kind string) {
		t.Helper()
		for _, resource := range []string{"billing", "mail"} {
			if out := runCommand(t, nil, kind, resource, "--dsn", s.DSN(pgtest.Control, db)); out.code != exitOK {
				t.Fatalf("%s %s: code %d: %s", kind, resource, out.code, out.stderr)
			}
		}
	}
	order("pause")
	s.Exec(t, pgtest.Control, db, "UPDATE fencepost.orders SET asked_at = asked_at - interval '1 hour'")
	for _, resource := range []string{"billing", "mail"} {
		servicetest.Eventually(t, resource+" to be paused for an hour", func() bool {
			code, _ := r.Ask(t, "/v1/resources/"+db+"/"+resource)
			if code != http.StatusOK {
				return false // not read yet
			}
			v := r.View(t, db, resource)
			return v.State == "paused" && v.StateSince != nil && time.Since(*v.StateSince).Round(time.Hour) == time.Hour
		})
	}
	order("resume")
	if recent := `SELECT state_since > clock_timestamp() - interval '1 minute' FROM fencepost.status WHERE resource = 'billing'`; !pgtest.Ask[bool](t, s, db, recent) {
		t.Error("the database does not say that the state has begun with the end of the pause")
	}
	var v admin.ResourceView
	var mail string
	servicetest.Eventually(t, "the end of the pause to be read", func() bool { // at most once a second
		v = r.View(t, db, "billing")
		_, mail = r.Ask(t, "/v1/resources/"+db+"/mail")
		return v.State != "paused" && !strings.Contains(mail, "paused")
	})
	if v.State != "absent" || v.StateSince == nil || time.Since(*v.StateSince) > time.Minute {
		t.Errorf("after the pause: %s since %v", v.State, v.StateSince)
	}
	if strings.Contains(mail, "paused") {
		t.Errorf("after the pause of a resource that nobody ever led: %s", mail)
	}
}

// TestAProxyWithoutWorkersKnowsWhoLeadsElsewhere within seconds, when it is asked.
func TestAProxyWithoutWorkersKnowsWhoLeadsElsewhere(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	lead(t, s, db, "a", nil)
	r := servicetest.Start(t, s, func(c *config.Config) { c.Control.ProbeDatabase = db })
	grantedTo := func(worker string) bool {
		_, body := r.Ask(t, "/v1/resources/"+db+"/billing")
		return strings.Contains(body, `"granted_to": "`+worker+`"`)
	}
	servicetest.Eventually(t, "the proxy to have read the database", func() bool { return grantedTo("a") })
	lead(t, s, db, "b", nil)
	began := time.Now()
	servicetest.Eventually(t, "b to be known", func() bool { return grantedTo("b") })
	if took := time.Since(began); took > 15*time.Second { // otherwise, it is read every 30 s
		t.Errorf("it took %s", took)
	}
}

// TestErrorsOfDSNsShowNothingOfThem: where a DSN cannot be parsed, nobody knows which part is the password.
func TestErrorsOfDSNsShowNothingOfThem(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"evict billing", "migrate", "doctor", "status", "guard list", "resource list"} {
		for _, dsn := range []string{
			"postgres://u:SECRET@SECRET:SECRET@127.0.0.1:2543x/shop",
			"postgres://u:SECRET/SECRET@127.0.0.1:5432/shop",
			"postgres://u:SECRET%zzSECRET@127.0.0.1/shop",
			"host=127.0.0.1 port=SECRET password = SECRET SECRET",
			"host=127.0.0.1 port=x password='SEC''RET SECRET'",
			"SECRET",
		} {
			out := runCommand(t, nil, append(strings.Fields(command), "--dsn", dsn)...)
			if text := out.stdout + out.stderr; out.code == exitOK || strings.Contains(text, "SECRET") || !strings.Contains(text, "postgres://USER:PASSWORD@") {
				t.Errorf("%s --dsn %s: code %d: %s", command, dsn, out.code, text)
			}
		}
		dsn := "postgres://u@127.0.0.1:5432/shop?sslmode=verify-full&sslrootcert=/nowhere"
		if out := runCommand(t, nil, append(strings.Fields(command), "--dsn", dsn)...); !strings.Contains(out.stderr, "no such file") {
			t.Errorf("%s: the error does not name the cause: %s", command, out.stderr)
		}
	}
}

// TestOrdersByDSN gives each order twice, with a DSN and no configuration.
func TestOrdersByDSN(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE PUBLICATION everything FOR ALL TABLES") // every table needs a key then
	lead(t, s, db, "a", nil)
	dsn := s.DSN(pgtest.Superuser, db)
	run := func(code int, want string, args ...string) {
		t.Helper()
		out := runCommand(t, nil, append(args, "--dsn", dsn)...)
		if out.code != code || !strings.Contains(out.stdout+out.stderr, want) {
			t.Errorf("%v: code %d, %q; want %q", args, out.code, out.stdout+out.stderr, want)
		}
	}
	for _, order := range []string{"evict", "resume"} {
		run(exitUsage, "--worker is empty", order, "billing", "--worker", "")
	}
	run(exitOK, "worker a does not lead resource billing any more: nobody holds epoch 2", "evict", "billing", "--by", "me")
	run(exitOK, "nobody leads resource billing: nothing changed", "evict", "billing")
	run(exitOK, "worker a may not campaign for resource billing until", "evict", "--worker", "a", "--for", "2d", "billing")
	run(exitOK, "resource billing is paused: nobody leads it until fencepost resume", "pause", "billing", "--reason", "a\tdrill")
	run(exitOK, "paused already: nothing changed", "pause", "billing")
	// By default (sslmode=prefer), a server without TLS is used without.
	for _, dsn := range []string{strings.TrimSuffix(dsn, "?sslmode=disable"), fmt.Sprintf("host=%s port=%d user=%s dbname=%s", s.SocketDir(), s.Port(), pgtest.Superuser, db)} {
		if out := runCommand(t, nil, "pause", "billing", "--dsn", dsn); out.code != exitOK || !strings.Contains(out.stdout, "nothing changed") {
			t.Errorf("--dsn %q: code %d, %s%s", dsn, out.code, out.stdout, out.stderr)
		}
	}
	out := runCommand(t, nil, "resource", "list", "--dsn", dsn)
	for _, part := range []string{"billing   2", `: "a\tdrill"; worker a may not campaign until`} {
		if out.code != exitOK || !strings.Contains(out.stdout, part) {
			t.Errorf("resource list does not say %q: %s%s", part, out.stdout, out.stderr)
		}
	}
	out = runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.Control, db))
	for _, part := range []string{"paused", `order: paused by order of "`, `, because of "a\tdrill"`, `order: worker "a" may not campaign until 2`} {
		if out.code != exitOK || !strings.Contains(out.stdout, part) || strings.Contains(out.stdout, "unknown") {
			t.Errorf("status does not say %q: %s%s", part, out.stdout, out.stderr)
		}
	}
	run(exitFailure, "it is paused, and would not be when it is made anew. Stop its workers first. If you are sure, use --force.", "resource", "rm", "billing")
	run(exitOK, "resource billing is not paused any more", "resume", "billing")
	run(exitOK, "resource billing is not paused: nothing changed", "resume", "billing")
	if out := runCommand(t, nil, "status", "--dsn", s.DSN(pgtest.Control, db)); strings.Contains(out.stdout, "paused") {
		t.Errorf("status after the pause: %s", out.stdout)
	}
	run(exitOK, "deleted 0 grants older than 90d", "ledger", "prune", "--keep", "90d")
	s.Exec(t, pgtest.Control, db, "UPDATE fencepost.grants SET granted_at = now() - interval '91 days'")
	run(exitOK, "deleted 1 grants older than 90d", "ledger", "prune", "--keep", "90d")
	run(exitOK, "resource billing is removed", "resource", "rm", "billing")
	run(exitOK, "there is no resource billing: nothing changed", "resource", "rm", "billing")
	run(exitFailure, `there is no such resource in database "`+db+`": "billing"`, "evict", "billing")
	run(exitFailure, "--new makes it", "pause", "billing") // it may be a slip of the pen
	run(exitOK, "resource billing is new: no worker has connected for it yet", "pause", "billing", "--new")
	run(exitOK, "resource billing is paused already", "pause", "billing")

	run(exitOK, "pause", "orders", "--resource", "billing")
	run(exitOK, "no order was given", "orders", "--resource", "mail")
	out = runCommand(t, nil, "orders", "--dsn", dsn)
	if lines := strings.Split(strings.TrimSpace(out.stdout), "\n"); out.code != exitOK || len(lines) != 8 || !strings.Contains(strings.Join(strings.Fields(lines[1]), " "), "evict billing a - 2 me "+pgtest.Superuser+" -") {
		t.Errorf("orders: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	var trail, kinds string
	row := s.Connect(t, pgtest.Superuser, db).QueryRow(context.Background(), `SELECT string_agg(kind, ' ' ORDER BY id),
		min(asked_by || ' as ' || role) FILTER (WHERE id = 1) FROM fencepost.orders`)
	if err := row.Scan(&kinds, &trail); err != nil {
		t.Fatal(err)
	}
	if kinds != "evict evict pause resume prune remove pause" || trail != "me as "+pgtest.Superuser {
		t.Errorf("the database keeps %q; the first is by %q", kinds, trail)
	}
}

// TestOrdersSayThatWritesAreDiscarded: whoever takes the lead from a worker is told that the worker's
// writes do not fail, as far as the command knows.
func TestOrdersSayThatWritesAreDiscarded(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	dir := t.TempDir()
	env := func(mode string) map[string]string {
		file := filepath.Join(dir, mode+".yml")
		if err := os.WriteFile(file, []byte("resources:\n  billing:\n    on_stale: "+mode+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return map[string]string{"FENCEPOST_CONFIG": file, "FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	}
	discard, reject := env("discard"), env("reject")
	const says, unknown = "resource billing has on_stale: discard: what worker %s writes on the connections that it has is discarded", "if it has on_stale: discard"
	run := func(env map[string]string, worker string, args ...string) {
		t.Helper()
		target := []string{"--database", db}
		if env == nil {
			target = []string{"--dsn", s.DSN(pgtest.Superuser, db)}
		}
		out := runCommand(t, env, append(args, target...)...)
		told := worker != "" && strings.Contains(out.stdout, fmt.Sprintf(says, worker)) || worker == "" && !strings.Contains(out.stdout, "on_stale")
		if env == nil {
			told = strings.Contains(out.stdout, unknown) == (worker != "")
		}
		for _, text := range []string{"ended after 2s, whatever lease.grace says", "if it has enforce: shadow for resource billing, where nothing is refused"} {
			if says := strings.Contains(out.stdout, text); says != (env == nil && args[0] != "resume") {
				t.Errorf("%v: says %q: %t: %s", args, text, says, out.stdout)
			}
		}
		if out.code != exitOK || !told {
			t.Errorf("%v: code %d, %s%s; discards what %q writes", args, out.code, out.stdout, out.stderr, worker)
		}
	}
	lead(t, s, db, "a", nil)
	run(discard, "a", "pause", "billing")
	run(discard, "", "pause", "billing")
	run(discard, "", "resume", "billing")
	lead(t, s, db, "b", nil)
	run(reject, "", "evict", "billing")
	lead(t, s, db, "c", nil)
	run(nil, "c", "pause", "billing")
	run(nil, "", "pause", "billing")
	run(nil, "", "resume", "billing")
	lead(t, s, db, "d", nil)
	run(discard, "", "generation", "bump")
	run(discard, "d", "generation", "bump", "--above", "90")
	run(discard, "", "generation", "bump", "--above", "91")
}

func TestGenerationBumpAsksBeforeRestored(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	lead(t, s, db, "a", nil)
	env := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	bump := func(answer string, code int, want string, more ...string) {
		t.Helper()
		out := runCommandWith(t, answer, env, append([]string{"generation", "bump", "--database", db, "--restored"}, more...)...)
		if out.code != code || !strings.Contains(out.stdout+out.stderr, want) {
			t.Errorf("answer %q: code %d, %s%s; want %q", answer, out.code, out.stdout, out.stderr, want)
		}
	}
	bump("", exitFailure, "nothing changed: the answer was not yes")
	bump("no\n", exitFailure, "resource billing: worker a holds epoch 1, and is superseded")
	if n := generation(t, s, db); n != 1 {
		t.Errorf("the generation is %d", n)
	}
	bump("yes\n", exitOK, "resource billing is now at epoch 1048578, which nobody holds")
	bump("", exitOK, "resource billing is now at epoch", "--yes")
}

// TestGuardCommands guards a table and removes the guard. A resource that guards a table
// cannot be removed.
func TestGuardCommands(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "DROP ROLE IF EXISTS migrator, b", "CREATE ROLE migrator", "CREATE ROLE b") // the test may run twice
	s.Exec(t, pgtest.Superuser, db, "CREATE PUBLICATION everything FOR ALL TABLES")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')")
	s.Exec(t, pgtest.App, db, "CREATE TABLE public.invoices (id int)", "CREATE TABLE public.late () INHERITS (public.invoices)")
	dsn := s.DSN(pgtest.Superuser, db)
	run := func(code int, want string, args ...string) {
		t.Helper()
		out := runCommand(t, nil, append(args, "--dsn", dsn)...)
		if text := strings.Join(strings.Fields(out.stdout+out.stderr), " "); out.code != code || !strings.Contains(text, want) {
			t.Errorf("%v: code %d, %q; want %q", args, out.code, text, want)
		}
	}
	add := []string{"guard", "add", "--resource", "billing", "--table", "public.invoices", "--stamp", "fence_epoch", "--except", "migrator", "--except", "b"}
	run(exitOK, "no table is guarded", "guard", "list")
	run(exitOK, "table public.invoices is guarded by resource billing now, with 1 partitions and children; it lets pass migrator, b", add...)
	run(exitOK, "guarded so already: nothing changed", add...)
	s.Exec(t, pgtest.App, db, `ALTER TABLE public.late DISABLE TRIGGER "~fencepost"`)
	run(exitOK, "public.invoices billing fence_epoch migrator, b 2 public.late", "guard", "list")
	run(exitFailure, "it guards 1 tables: public.invoices. Remove their guards first", "resource", "rm", "billing", "--force")
	run(exitOK, "its column fence_epoch stays", "guard", "remove", "--table", "public.invoices")
	run(exitFailure, "table public.invoices is not guarded", "guard", "remove", "--table", "public.invoices")
	// What is recorded and lost is named, and does not keep the resource.
	run(exitOK, "is guarded by resource billing now", add...)
	s.Exec(t, pgtest.App, db, "CREATE FUNCTION public.change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
		`CREATE TRIGGER "~zeta" BEFORE INSERT ON public.invoices FOR EACH ROW EXECUTE FUNCTION public.change()`)
	run(exitOK, "could change its stamps: ~zeta on public.invoices", "guard", "list")
	s.Exec(t, pgtest.App, db, "DROP TABLE public.invoices CASCADE", "CREATE TABLE public.invoices (id int)")
	run(exitOK, "table public.invoices is recorded as guarded, and has no guard", "guard", "list")
	run(exitOK, "billing: table public.invoices is recorded as guarded, and has no guard", "status")
	run(exitOK, `"lost_guards": [ "public.invoices" ]`, "status", "--json")
	run(exitOK, "is not recorded as guarded any more", "guard", "remove", "--table", "public.invoices")
	run(exitOK, "no table is guarded", "guard", "list")
	run(exitOK, "is guarded by resource billing now", append(add, "--warn")...)
	s.Exec(t, pgtest.App, db, "DROP TABLE public.invoices")
	run(exitOK, "removed", "resource", "rm", "billing")
}

// TestAHandOverSaysHowLongNobodyCouldWrite, when both proxies have said so in time.
func TestAHandOverSaysHowLongNobodyCouldWrite(t *testing.T) {
	t.Parallel()
	stopped := time.Now()
	var out strings.Builder
	h := handingOver{
		t: terminal{stdout: &out}, database: "shop", order: &fencing.Order{Resource: "billing", Worker: "b"},
		state: handover.State{From: 1, Former: "a", Epoch: 2, Holder: "b", Stopped: stopped, Taken: stopped.Add(40 * time.Millisecond)},
	}
	if err := h.ended(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	const want = "database shop: worker b leads resource billing with epoch 2; before, worker a had epoch 1; no transaction could begin to write for 40ms\n"
	if out.String() != want {
		t.Errorf("it said %q", out.String())
	}
}
