package doctor_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/doctor"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// asControl returns sources that use the control role, with a lease service without faults.
func asControl(s *pgtest.Server, databases ...string) doctor.Sources {
	c := config.Default()
	c.Control.User = pgtest.Control
	c.Limits.MaxConnections = 10
	return doctor.Sources{
		Settings: &c, Databases: databases,
		Control: store.Config{Address: s.Addr(), User: pgtest.Control},
		Leases:  func(context.Context) error { return nil },
	}
}

// asSuperuser returns sources that use the superuser's connection only.
func asSuperuser(s *pgtest.Server, database string) doctor.Sources {
	return asOperator(s, pgtest.Superuser, database)
}

// asOperator returns sources that use the connection of a role only.
func asOperator(s *pgtest.Server, role, database string) doctor.Sources {
	return doctor.Sources{Operator: func(ctx context.Context) (*pgx.Conn, error) {
		return pgx.Connect(ctx, s.DSN(role, database))
	}}
}

// ids returns the ids that were found, in order and each once.
func ids(found []doctor.Finding) []string {
	var all []string
	for _, f := range found {
		all = append(all, f.ID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func wantIDs(t *testing.T, r doctor.Report, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := ids(r.Findings); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v; %+v", got, want, r)
	}
	if len(r.Failures) > 0 {
		t.Errorf("could not look: %v", r.Failures)
	}
}

// safeSettings are those of a server in which nothing is wrong.
var safeSettings = map[string]string{"fsync": "on", "full_page_writes": "on"}

func TestNothingIsFoundInASoundInstallation(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(safeSettings))
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE invoices (id int)")
	for name, sources := range map[string]doctor.Sources{"control role": asControl(s, db), "superuser": asSuperuser(s, db), "search": asControl(s)} {
		r := doctor.NewReport(doctor.Look(t.Context(), sources))
		wantIDs(t, r)
		if readsRules := name == "superuser"; slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "pg_hba.conf") }) == readsRules {
			t.Errorf("%s: the notes are %q", name, r.Notes)
		}
		if err := r.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAControlRoleThatLacksARight: a superuser, who cannot distinguish it from the role of someone else, uses nothing in its
// schema.
func TestAControlRoleThatLacksARight(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(safeSettings))
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "REVOKE pg_signal_backend FROM "+pgtest.Control)
	r := doctor.NewReport(doctor.Look(t.Context(), asControl(s, db)))
	wantIDs(t, r, "control-privilege")
	if len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Seen, "pg_signal_backend") {
		t.Errorf("found %+v", r.Findings)
	}
	r = doctor.NewReport(doctor.Look(t.Context(), asSuperuser(s, db)))
	if len(r.Findings) != 0 || len(r.Failures) != 1 || !strings.Contains(r.Failures[0], `GRANT pg_signal_backend TO "`+pgtest.Control+`"`) {
		t.Errorf("found %+v; could not look: %v", r.Findings, r.Failures)
	}
}

// TestWhatIsWrongIsFound: everything at once, on a real server.
func TestWhatIsWrongIsFound(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t) // without fsync, and with a prepared transaction
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "GRANT UPDATE ON fencepost.fence TO scram_user")
	s.Exec(t, pgtest.Superuser, db,
		"CREATE ROLE boss SUPERUSER LOGIN", "CREATE ROLE mighty LOGIN IN ROLE pg_write_all_data",
		"CREATE ROLE writers", "CREATE ROLE member LOGIN NOINHERIT IN ROLE writers",
		"CREATE ROLE team NOINHERIT IN ROLE writers", "CREATE ROLE nested LOGIN NOINHERIT IN ROLE team",
		"CREATE ROLE column_writer LOGIN", "CREATE ROLE reader LOGIN",
		"CREATE TABLE of_control (id int)", "ALTER TABLE of_control OWNER TO "+pgtest.Control,
		"CREATE TABLE invoices (id int, paid bool)",
		"GRANT INSERT ON invoices TO writers", "GRANT UPDATE (paid) ON invoices TO column_writer", "GRANT SELECT ON invoices TO reader",
		"ALTER ROLE app SET synchronous_commit = off", "ALTER ROLE postgres SET synchronous_commit = off")
	s.Exec(t, pgtest.Control, db, "BEGIN", "SELECT FROM fencepost.fence FOR KEY SHARE", "PREPARE TRANSACTION 'stuck'")
	t.Cleanup(func() { s.Exec(t, pgtest.Control, db, "ROLLBACK PREPARED 'stuck'") })
	rules, err := os.OpenFile(filepath.Join(s.DataDir(), "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(rules, "host %s all 10.0.0.0/8 scram-sha-256\nhost nonsense\n", db); err != nil {
		t.Fatal(err)
	}
	if err := rules.Close(); err != nil {
		t.Fatal(err)
	}
	follow(t, s)
	r := doctor.NewReport(doctor.Look(t.Context(), asSuperuser(s, db)))
	wantIDs(t, r, "fsync-off", "full-page-writes-off", "synchronous-commit", "asynchronous-replica", "prepared-transaction-holds-fence",
		"write-all-data", "fence-rights", "way-around", "hba-invalid")
	for id, wants := range map[string][]string{
		"synchronous-commit":               {"off for role "},
		"asynchronous-replica":             {"a_standby"},
		"prepared-transaction-holds-fence": {`"stuck" of role fencepost`, "billing"},
		"fence-rights":                     {"scram_user has the right to change fencepost.fence", "owns the table public.of_control"},
		"way-around":                       {"10.0.0.0/8: boss, column_writer, member, mighty, nested, postgres"},
	} {
		for _, want := range wants {
			if !slices.ContainsFunc(r.Findings, func(f doctor.Finding) bool { return f.ID == id && strings.Contains(f.Seen, want) }) {
				t.Errorf("no %s contains %q: %+v", id, want, r.Findings)
			}
		}
	}
}

// follow receives the WAL of the server as a standby does, until the test ends.
func follow(t *testing.T, s *pgtest.Server) {
	t.Helper()
	standby, err := pgconn.Connect(t.Context(), s.DSN(pgtest.Superuser, "postgres")+"&replication=true&application_name=a_standby")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Close(context.Background()) })
	system, err := standby.Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	standby.Frontend().Send(&pgproto3.Query{String: "START_REPLICATION PHYSICAL " + string(system[0].Rows[0][2])})
	if err := standby.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	conn := s.Connect(t, pgtest.Superuser, "postgres")
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		var streams bool
		if err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')").Scan(&streams); err != nil {
			t.Fatal(err)
		}
		if streams {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the standby did not connect")
		}
	}
}

func TestWhatKeepsFencepostFromItsWorkIsFound(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(safeSettings))
	empty, db := s.EmptyDatabase(t), s.Database(t)
	s.Exec(t, pgtest.Superuser, db, fmt.Sprintf("DELETE FROM fencepost.schema_version WHERE version >= %d", migrations.Needed))
	for name, c := range map[string]struct {
		change func(*doctor.Sources)
		want   string
		blind  bool
	}{
		"wrong password": {func(o *doctor.Sources) { o.Control.User, o.Control.Password = "scram_user", "wrong" }, "control-login", false},
		"no Postgres":    {func(o *doctor.Sources) { o.Control.Address = "127.0.0.1:1" }, "upstream", false},
		"no database":    {func(o *doctor.Sources) { o.Databases = []string{"nowhere"} }, "", true},
		"no schema":      {func(o *doctor.Sources) { o.Databases = []string{empty} }, "schema", false},
		"an old schema":  {func(o *doctor.Sources) { o.Databases = []string{db} }, "schema", false},
		"the leases": {func(o *doctor.Sources) {
			o.Databases, o.Leases = nil, func(context.Context) error { return os.ErrDeadlineExceeded }
		}, "lease-service", false},
		"no operator": {func(o *doctor.Sources) {
			*o = doctor.Sources{Operator: func(context.Context) (*pgx.Conn, error) { return nil, os.ErrDeadlineExceeded }}
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sources := asControl(s, db)
			c.change(&sources)
			r := doctor.NewReport(doctor.Look(t.Context(), sources))
			if got := ids(r.Findings); c.want != "" && !slices.Contains(got, c.want) || c.want == "" && len(got) > 0 {
				t.Errorf("found %v, want %s", got, c.want)
			}
			if (len(r.Failures) > 0) != c.blind {
				t.Errorf("failures: %q", r.Failures)
			}
		})
	}
}

func TestNoDatabaseHasTheSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(safeSettings))
	s.Exec(t, pgtest.Superuser, "postgres", "ALTER DATABASE "+pgtest.Template+" IS_TEMPLATE false", "DROP DATABASE "+pgtest.Template)
	wantIDs(t, doctor.NewReport(doctor.Look(t.Context(), asControl(s))), "schema")
}

// TestTheReportWritesNoLinesOfUsers: names may contain line ends and escape sequences.
func TestTheReportWritesNoLinesOfUsers(t *testing.T) {
	t.Parallel()
	r := doctor.NewReport(doctor.Facts{Databases: []doctor.Database{{Name: "d\nerror: \x1b[2K", Schema: doctor.Schema{Latest: 1}}}})
	var out strings.Builder
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if strings.Count(out.String(), "\n") != 5 || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q", out.String())
	}
}

// stamping returns the statements that make the guard of resource 1 on a table, with stamps.
func stamping(table string) []string {
	return []string{
		`CREATE TRIGGER "~fencepost" BEFORE INSERT OR UPDATE OR DELETE ON ` + table + ` FOR EACH ROW EXECUTE FUNCTION fencepost.guard_1_fence_epoch('refuse')`,
		`CREATE TRIGGER "~fencepost_truncate" BEFORE TRUNCATE ON ` + table + ` EXECUTE FUNCTION fencepost.guard_1('refuse')`,
		`ALTER TABLE ` + table + ` ENABLE ALWAYS TRIGGER "~fencepost", ENABLE ALWAYS TRIGGER "~fencepost_truncate"`,
	}
}

// TestASafeServer plays what concerns one database of a server in which nothing else is wrong.
func TestASafeServer(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(safeSettings))
	for name, test := range map[string]func(*testing.T, *pgtest.Server){
		"a worker from two places": testAWorkerFromTwoPlacesIsNamed,
		"guards":                   testGuardsAreLookedAt,
		"a takeover meanwhile":     testATakeoverWhileStampsAreLookedAt,
		"stamps by any name":       testStampsOfATableByAnyName,
	} {
		t.Run(name, func(t *testing.T) { test(t, s) })
	}
}

// testGuardsAreLookedAt: a guard of which a child has no trigger, whose owner logs in, with
// a stamp that no grant explains, which only a superuser may read.
func testGuardsAreLookedAt(t *testing.T, s *pgtest.Server) {
	db := s.Database(t)
	s.Exec(t, pgtest.App, db, "CREATE TABLE public.invoices (id int, fence_epoch bigint)", "INSERT INTO public.invoices VALUES (1, 5)")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL), fencepost.make_guard(1, 'fence_epoch')")
	s.Exec(t, pgtest.Superuser, db, stamping("public.invoices")...)
	wantIDs(t, doctor.NewReport(doctor.Look(t.Context(), asControl(s, db))), "guard-owner")
	wantIDs(t, doctor.NewReport(doctor.Look(t.Context(), asSuperuser(s, db))), "guard-owner", "stamp-above-fence")
	s.Exec(t, pgtest.App, db, "CREATE TABLE public.late () INHERITS (public.invoices)")
	r := doctor.NewReport(doctor.Look(t.Context(), asControl(s, db)))
	wantIDs(t, r, "guard-owner", "guard-broken")
	if seen := r.Findings[0].Seen; !strings.Contains(seen, "missing or disabled on public.late") {
		t.Errorf("the finding says %q", seen)
	}
	s.Exec(t, pgtest.App, db, "CREATE FUNCTION public.change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
		`CREATE TRIGGER "~zeta" BEFORE INSERT ON public.invoices FOR EACH ROW EXECUTE FUNCTION public.change()`)
	r = doctor.NewReport(doctor.Look(t.Context(), asControl(s, db)))
	wantIDs(t, r, "guard-owner", "guard-broken", "guard-order")
	if text := fmt.Sprint(r.Findings); !strings.Contains(text, `could change its stamps: "~zeta" on public.invoices`) {
		t.Errorf("the findings say %s", text)
	}
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.record_guards(1, NULL, NULL)")
	s.Exec(t, pgtest.App, db, "DROP TABLE public.invoices CASCADE")
	r = doctor.NewReport(doctor.Look(t.Context(), asControl(s, db)))
	wantIDs(t, r, "guard-lost")
	if seen := r.Findings[0].Seen; !strings.Contains(seen, "table public.invoices is recorded as guarded by resource billing") {
		t.Errorf("the finding says %q", seen)
	}
}

// testATakeoverWhileStampsAreLookedAt: a worker is granted an epoch and writes under it after
// the doctor has read the guards, and before it reads the stamps.
func testATakeoverWhileStampsAreLookedAt(t *testing.T, s *pgtest.Server) {
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL), fencepost.make_guard(1, 'fence_epoch')")
	s.Exec(t, pgtest.Superuser, db, append([]string{"CREATE TABLE public.invoices (id int, fence_epoch bigint)"}, stamping("public.invoices")...)...)
	worker := s.Connect(t, pgtest.Superuser, db)
	run := func(sql string) {
		t.Helper()
		if _, err := worker.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run("BEGIN; LOCK TABLE public.invoices IN ACCESS EXCLUSIVE MODE")
	reports := make(chan doctor.Report, 1)
	go func() { reports <- doctor.NewReport(doctor.Look(t.Context(), asSuperuser(s, db))) }()
	fixture.Eventually(t, "the doctor waits for the table", func() bool {
		var waits bool
		err := worker.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'public.invoices'::regclass AND NOT granted)").Scan(&waits)
		return err == nil && waits
	})
	run("UPDATE fencepost.fence SET epoch = 5, worker = 'w', source = 'test', granted_at = now();" +
		"INSERT INTO fencepost.running (pid, backend_start, fence, epoch) SELECT pid, backend_start, 1, 5 FROM pg_stat_get_activity(pg_backend_pid());" +
		"INSERT INTO public.invoices VALUES (1); COMMIT") // at once: the doctor waits for 3 s
	r := <-reports
	for _, f := range r.Findings {
		if f.ID == "stamp-above-fence" {
			t.Errorf("%+v", f)
		}
	}
	if len(r.Failures) > 0 || strings.Contains(strings.Join(r.Notes, " "), "The stamps") {
		t.Errorf("not looked at: %q, %q", r.Failures, r.Notes)
	}
}

// testStampsOfATableByAnyName: the name of a guarded table, and those of its columns, hide no table of the fence.
func testStampsOfATableByAnyName(t *testing.T, s *pgtest.Server) {
	db := s.Database(t)
	s.Exec(t, pgtest.Superuser, db, "CREATE TABLE public.f (id int, fence_epoch bigint, epoch bigint DEFAULT 9)", "CREATE TABLE public.t (id int, fence_epoch bigint)")
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL), fencepost.make_guard(1, 'fence_epoch')")
	for _, table := range []string{"public.f", "public.t"} {
		s.Exec(t, pgtest.Superuser, db, append([]string{"INSERT INTO " + table + " VALUES (1, 5)"}, stamping(table)...)...)
	}
	r := doctor.NewReport(doctor.Look(t.Context(), asSuperuser(s, db)))
	wantIDs(t, r, "stamp-above-fence")
	if n := len(r.Findings); n != 2 {
		t.Errorf("%d findings: %+v", n, r.Findings)
	}
}

// TestStampsRunNothingOfTheTablesOwner: what the owner of a guarded table has made is not evaluated with the rights of
// whoever reads the stamps.
func TestStampsRunNothingOfTheTablesOwner(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t, pgtest.WithConfig(safeSettings))
	const harmful = "could run functions of another role"
	for _, c := range []struct {
		name                   string
		trap                   []string
		toSuperuser, toControl string
	}{
		{"an index", []string{"CREATE FUNCTION trap.k() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true'",
			"CREATE INDEX sprung ON public.invoices (id) WHERE trap.k()",
			"CREATE OR REPLACE FUNCTION trap.k() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()'"}, harmful, harmful},
		{"a cast", []string{"CREATE TYPE trap.r AS RANGE (subtype = int8)",
			"CREATE FUNCTION trap.f(trap.r) RETURNS int8 LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int::int8'",
			"CREATE CAST (trap.r AS int8) WITH FUNCTION trap.f(trap.r) AS IMPLICIT",
			"ALTER TABLE public.invoices DROP COLUMN fence_epoch", "ALTER TABLE public.invoices ADD COLUMN fence_epoch trap.r DEFAULT '[1,2)'"}, harmful, harmful},
		{"the key of a partition", []string{"CREATE FUNCTION trap.k(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1'",
			"CREATE TABLE public.top (id int, fence_epoch bigint) PARTITION BY LIST (trap.k(id))",
			"ALTER TABLE public.top ATTACH PARTITION public.invoices FOR VALUES IN (1)",
			"CREATE OR REPLACE FUNCTION trap.k(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int'"}, harmful, harmful},
		{"a range type", []string{"CREATE FUNCTION trap.diff(int8, int8) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int::float8'",
			"CREATE TYPE trap.r AS RANGE (subtype = int8, subtype_diff = trap.diff)", "ALTER TABLE public.invoices ADD COLUMN r trap.r DEFAULT trap.r(0, 2 + (random() * 1000)::int8)",
			"CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR r @> 5::bigint"}, harmful, harmful},
		{"an array of ranges", []string{"CREATE FUNCTION trap.diff(int8, int8) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int::float8'",
			"CREATE TYPE trap.r AS RANGE (subtype = int8, subtype_diff = trap.diff)", "CREATE TYPE trap.c AS (r trap.r[])", "ALTER TABLE public.invoices ADD COLUMN r trap.c",
			"CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR ((r).r)[1] @> 5::bigint"}, harmful, harmful},
		{"a range type that no column has", []string{"CREATE FUNCTION trap.diff(int8, int8) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int::float8'",
			"CREATE TYPE trap.r AS RANGE (subtype = int8, subtype_diff = trap.diff)",
			"CREATE INDEX ON public.invoices ((CASE WHEN fence_epoch > 50 THEN '[1,9)'::trap.r ELSE '[5,900)'::trap.r END))",
			"CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR (CASE WHEN fence_epoch > 50 THEN '[1,9)'::trap.r ELSE '[5,900)'::trap.r END) @> 5::bigint"}, harmful, harmful},
		{"a range type that JSON_VALUE returns, where it exists", []string{"CREATE FUNCTION trap.diff(int8, int8) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int::float8'",
			"CREATE TYPE trap.r AS RANGE (subtype = int8, subtype_diff = trap.diff)", "ALTER TABLE public.invoices ADD COLUMN j jsonb DEFAULT '\"[1,9)\"'", `DO $$ DECLARE r text := '(CASE WHEN fence_epoch > 50 THEN ''[1,9)''::trap.r ELSE ''[5,900)''::trap.r END)'; BEGIN
				IF current_setting('server_version_num')::int >= 170000 THEN r := 'JSON_VALUE(j, ''$'' RETURNING trap.r)'; END IF;
				EXECUTE format('CREATE INDEX ON public.invoices ((%s))', r);
				EXECUTE format('CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR %s @> 5::bigint', r); END $$`}, harmful, harmful},
		{"the negator of an operator", []string{"CREATE FUNCTION trap.eq(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()'",
			"CREATE OPERATOR trap.=== (FUNCTION = trap.eq, LEFTARG = int, RIGHTARG = int, NEGATOR = OPERATOR(trap.<<>>))",
			"CREATE OPERATOR trap.<<>> (FUNCTION = pg_catalog.int4ne, LEFTARG = int, RIGHTARG = int, NEGATOR = OPERATOR(trap.===), RESTRICT = neqsel)",
			"CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR id OPERATOR(trap.<<>>) 5"}, harmful, harmful},
		{"the negator of an operator that was given to a superuser", []string{"CREATE FUNCTION trap.eq(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()'",
			"CREATE OPERATOR trap.=== (FUNCTION = trap.eq, LEFTARG = int, RIGHTARG = int, NEGATOR = OPERATOR(trap.<<<>>>))",
			"CREATE OPERATOR trap.<<<>>> (FUNCTION = pg_catalog.int4ne, LEFTARG = int, RIGHTARG = int, NEGATOR = OPERATOR(trap.===), RESTRICT = neqsel)",
			"CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR id OPERATOR(trap.<<<>>>) 5"}, harmful, harmful},
		{"the key of a table that no query names", []string{"CREATE FUNCTION trap.k(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int'",
			"CREATE TABLE trap.h (id int) PARTITION BY HASH ((id + trap.k(1)))",
			"DO $$ BEGIN EXECUTE format('CREATE INDEX ON public.invoices (id) WHERE satisfies_hash_partition(%s::oid, 1, 0, 1)', 'trap.h'::regclass::oid); END $$"}, harmful, harmful},
		{"the constructor of a range type", []string{"CREATE FUNCTION trap.diff(int8, int8) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int::float8'",
			"CREATE TYPE trap.r AS RANGE (subtype = int8, subtype_diff = trap.diff)", "CREATE STATISTICS public.st ON (trap.r(0, fence_epoch)) FROM public.invoices",
			"CREATE INDEX ON public.invoices (id) WHERE fence_epoch IS NOT NULL OR trap.r(0, fence_epoch) @> 5::bigint"}, harmful, harmful},
		{"the checks of a domain within a row", []string{"CREATE EXTENSION hstore SCHEMA trap", "CREATE DOMAIN trap.d AS int CHECK (trap.spring())", "CREATE TYPE trap.comp AS (a trap.d)",
			"CREATE INDEX ON public.invoices (id) WHERE trap.populate_record((ARRAY[]::trap.comp[])[1], 'a=>1'::trap.hstore) IS NOT NULL"}, harmful, harmful},
		{"the checks of a domain", []string{"CREATE INDEX ON public.invoices (id) WHERE (id::trap.checked) IS NOT NULL"}, harmful, harmful},
		{"the checks of a domain in a partition's key", []string{
			"CREATE TABLE public.top (id int, fence_epoch bigint) PARTITION BY LIST ((id::trap.checked))", "ALTER TABLE public.top ATTACH PARTITION public.invoices FOR VALUES IN (1)"}, harmful, harmful},
		{"a superuser's domain whose check casts to another one", []string{"CREATE INDEX ON public.invoices (id) WHERE (id::public.casting) IS NOT NULL"}, harmful, harmful},
		{"a superuser's domain that evaluates the key of a table", []string{"CREATE INDEX ON public.invoices (id) WHERE (id::public.keyed) IS NOT NULL"}, harmful, harmful},
		{"a superuser's function that finds others by search_path", []string{"CREATE INDEX ON public.invoices (id) WHERE public.two() = 1"}, "finds others by search_path", "finds others by search_path"},
		{"a superuser's domain", []string{"CREATE INDEX ON public.invoices (id) WHERE (id::public.positive) IS NOT NULL"}, "", ""},
		{"an index on a domain, and a rule for DELETE", []string{"CREATE DOMAIN trap.d AS text CHECK (VALUE <> '')", "ALTER TABLE public.invoices ADD COLUMN d trap.d DEFAULT 'x'",
			"CREATE INDEX ON public.invoices (d) WHERE id IS NULL", "CREATE RULE keep AS ON DELETE TO public.invoices WHERE trap.spring() DO INSTEAD NOTHING"}, "", ""},
		{"an index on an enumeration", []string{"CREATE TYPE trap.e AS ENUM ('open', 'paid')", "ALTER TABLE public.invoices ADD COLUMN e trap.e DEFAULT 'open'",
			"CREATE INDEX ON public.invoices (id) WHERE e = 'open'"}, "", ""},
		{"a range type without conditions on it", []string{"CREATE TYPE trap.r AS RANGE (subtype = int8)", "ALTER TABLE public.invoices ADD COLUMN r trap.r", "CREATE INDEX ON public.invoices USING gist (r)"}, "", ""},
		{"a policy", []string{"CREATE POLICY p ON public.invoices USING (trap.spring())", "ALTER TABLE public.invoices ENABLE ROW LEVEL SECURITY"},
			"", "may not read it, or not all of it"},
		{"none", nil, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := s.Database(t)
			s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL), fencepost.make_guard(1, 'fence_epoch')")
			s.Exec(t, pgtest.Superuser, db, "ALTER DATABASE "+db+" SET standard_conforming_strings = off") // as its owner may
			s.Exec(t, pgtest.Superuser, db, "CREATE SCHEMA trap AUTHORIZATION "+pgtest.App, "GRANT CREATE ON SCHEMA public TO "+pgtest.App, "GRANT CREATE ON DATABASE "+db+" TO "+pgtest.App)
			s.Exec(t, pgtest.App, db, "CREATE TABLE public.invoices (id int, fence_epoch bigint)", "GRANT SELECT ON public.invoices TO "+pgtest.Control,
				"INSERT INTO public.invoices SELECT 1, n FROM generate_series(1, 100) n", "GRANT USAGE ON SCHEMA trap TO PUBLIC",
				"CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN IF current_user <> '"+pgtest.App+"' THEN RAISE EXCEPTION 'SPRUNG'; END IF; RETURN true; END $$")
			s.Exec(t, pgtest.App, db, "CREATE DOMAIN trap.checked AS int CHECK (trap.spring())",
				"CREATE FUNCTION trap.key(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT trap.spring()::int'",
				"CREATE TABLE trap.keyed (id int) PARTITION BY HASH ((id + trap.key(1)))")
			s.Exec(t, pgtest.Superuser, db, append(stamping("public.invoices"), "CREATE DOMAIN public.positive AS int CHECK (VALUE > 0)",
				"CREATE FUNCTION public.one() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
				"CREATE FUNCTION public.two() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
				"CREATE DOMAIN public.casting AS int CHECK (VALUE::trap.checked IS NOT NULL)",
				"DO $$ BEGIN EXECUTE format('CREATE DOMAIN public.keyed AS int CHECK (satisfies_hash_partition(%s::oid, 1, 0, 1) IS NOT NULL)', 'trap.keyed'::regclass::oid); END $$")...)
			s.Exec(t, pgtest.App, db, append(c.trap, "ANALYZE public.invoices")...)
			s.Exec(t, pgtest.Superuser, db, "SET search_path = public", "CREATE OR REPLACE FUNCTION public.two() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT one()'",
				"DO $$ BEGIN ALTER OPERATOR trap.<<<>>> (int, int) OWNER TO "+pgtest.Superuser+"; EXCEPTION WHEN undefined_function THEN NULL; END $$")
			for _, reader := range []struct {
				name, says string
				look       doctor.Sources
			}{
				{"a superuser", c.toSuperuser, asOperator(s, pgtest.Superuser, db)},
				{"the control role, by --dsn", c.toControl, asOperator(s, pgtest.Control, db)},
				{"the control role", c.toControl, asControl(s, db)},
			} {
				r := doctor.NewReport(doctor.Look(t.Context(), reader.look))
				said := fmt.Sprint(r.Notes, r.Failures)
				if !strings.Contains(said, reader.says) || strings.Contains(said, "SPRUNG") || reader.says == "" && strings.Contains(said, "tamps") {
					t.Errorf("to %s it says %s, want %q", reader.name, said, reader.says)
				}
			}
		})
	}
}
