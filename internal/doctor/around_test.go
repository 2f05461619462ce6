package doctor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/doctor"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// guarded makes the triggers of a guard by the resource billing, as fencepost guard add does.
func guarded(t *testing.T, s *pgtest.Server, db string, tables ...string) {
	t.Helper()
	for _, table := range tables {
		s.Exec(t, pgtest.Superuser, db,
			fmt.Sprintf(`CREATE TRIGGER "~fencepost" BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION fencepost.guard_1('refuse')`, table),
			fmt.Sprintf(`CREATE TRIGGER "~fencepost_truncate" BEFORE TRUNCATE ON %s EXECUTE FUNCTION fencepost.guard_1('refuse')`, table),
			fmt.Sprintf(`ALTER TABLE %s ENABLE ALWAYS TRIGGER "~fencepost", ENABLE ALWAYS TRIGGER "~fencepost_truncate"`, table))
	}
}

// house is a server with the guarded tables public.t and public.parent, whose child has
// another owner, and with roles of every kind.
type house struct {
	s       *pgtest.Server
	db      string
	version int // server_version_num
	roles   []string
}

func newHouse(t *testing.T, o ...pgtest.Option) house {
	t.Helper()
	s := pgtest.Start(t, append(o, pgtest.WithConfig(safeSettings))...)
	db := s.Database(t)
	h := house{s: s, db: db, roles: []string{"app", "boss", "heir", "maker", "member", "setter", "stranger", "writer"}}
	if err := s.Connect(t, pgtest.Superuser, db).QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&h.version); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')", "SELECT fencepost.make_guard(1, NULL), fencepost.admit('app')")
	s.Exec(t, pgtest.Superuser, db, "CREATE ROLE keeper", "CREATE ROLE heir LOGIN", "CREATE TABLE public.t (id int)", "CREATE TABLE public.parent (id int)", "CREATE TABLE public.child () INHERITS (public.parent)",
		"ALTER TABLE public.t OWNER TO keeper", "ALTER TABLE public.parent OWNER TO keeper", "ALTER TABLE public.child OWNER TO heir", "GRANT CREATE ON SCHEMA public TO keeper",
		"CREATE ROLE member LOGIN NOINHERIT IN ROLE keeper", "CREATE ROLE maker LOGIN CREATEROLE", "CREATE ROLE boss LOGIN SUPERUSER",
		"CREATE ROLE setter LOGIN", "CREATE ROLE writer LOGIN IN ROLE pg_write_all_data", "CREATE ROLE stranger LOGIN",
		"GRANT ALL ON public.t, public.parent, public.child TO app, maker, setter, stranger", "GRANT SET ON PARAMETER session_replication_role TO setter")
	if h.version >= 160000 {
		s.Exec(t, pgtest.Superuser, db, "CREATE ROLE idle LOGIN", "GRANT ALL ON public.t TO idle", "GRANT keeper TO idle WITH INHERIT FALSE, SET FALSE",
			"CREATE ROLE granter LOGIN", "GRANT keeper TO granter WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
		h.roles = append(h.roles, "granter", "idle")
	}
	guarded(t, s, db, "public.t", "public.parent", "public.child")
	return h
}

// attempts are what a role may try to write a guarded table, %[1]s, whose owner is %[2]s.
var attempts = []string{
	"INSERT INTO %[1]s VALUES (1)",
	"SET session_replication_role = replica; INSERT INTO %[1]s VALUES (1)",
	"ALTER TABLE %[1]s DISABLE TRIGGER USER; INSERT INTO %[1]s VALUES (1)",
	"DROP TRIGGER \"~fencepost\" ON %[1]s; INSERT INTO %[1]s VALUES (1)",
	"SET ROLE %[2]s; ALTER TABLE %[1]s DISABLE TRIGGER USER; INSERT INTO %[1]s VALUES (1)",
	"DO $$BEGIN EXECUTE format('GRANT %[2]s TO %%I', session_user); END$$; SET ROLE %[2]s; DROP TRIGGER \"~fencepost\" ON %[1]s; INSERT INTO %[1]s VALUES (1)",
}

// goAround returns the roles that can write a guarded table in spite of its guard.
func (h house) goAround(t *testing.T, table, owner string) (around []string) {
	t.Helper()
	for _, role := range h.roles {
		conn := h.s.Connect(t, role, h.db)
		can := false
		for _, sql := range attempts {
			if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
				t.Fatal(err)
			}
			_, err := conn.Exec(t.Context(), fmt.Sprintf(sql, table, owner))
			can = can || err == nil
			if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
		}
		if can {
			around = append(around, role)
		}
	}
	slices.Sort(around)
	return around
}

// TestWhoCanGoAroundAGuardIsNamed compares the roles that the doctor names with those that
// can write the guarded tables, or disable their guard.
func TestWhoCanGoAroundAGuardIsNamed(t *testing.T) {
	t.Parallel()
	for version, o := range map[string][]pgtest.Option{"default": nil, "18": {pgtest.WithBinaries(pgtest.Binaries(t, 18))}} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, o...)
			h.namesAll(t)
			h.namesWhoMaySet(t)
			h.isOpenedByPgWriteAllData(t)
		})
	}
}

func (h house) namesAll(t *testing.T) {
	r := doctor.NewReport(doctor.Look(t.Context(), asSuperuser(h.s, h.db)))
	wantIDs(t, r, "guard-owner", "guard-superuser", "write-all-data")
	named := map[string][]string{"public.t": {"boss"}, "public.parent": {"boss"}}
	for _, f := range r.Findings {
		before, after, _ := strings.Cut(f.Seen, " may act as the owner of table ")
		if f.ID == "guard-owner" {
			table, _, _ := strings.Cut(after, ",")
			named[table] = append(named[table], strings.Split(before, ", ")...)
		}
		if f.ID == "guard-superuser" && !strings.HasSuffix(f.Seen, "the guards of public.parent, public.t: boss") || f.ID == "write-all-data" && !strings.Contains(f.Seen, "lets writer change") {
			t.Errorf("%s: %s", f.ID, f.Seen)
		}
	}
	parent := append(h.goAround(t, "public.parent", "keeper"), h.goAround(t, "public.child", "heir")...)
	for table, want := range map[string][]string{"public.t": h.goAround(t, "public.t", "keeper"), "public.parent": parent} {
		slices.Sort(want)
		slices.Sort(named[table])
		if want = slices.Compact(want); len(want) < 3 || !slices.Equal(named[table], want) {
			t.Errorf("%s: the doctor names %v, and %v can go around its guard", table, named[table], want)
		}
	}
}

// namesWhoMaySet has the owner enable a trigger in the ordinary way: who may set
// session_replication_role is then named, and can write the table.
func (h house) namesWhoMaySet(t *testing.T) {
	before := h.goAround(t, "public.t", "keeper")
	h.s.Exec(t, "member", h.db, "SET ROLE keeper", `ALTER TABLE public.t ENABLE TRIGGER "~fencepost"`)
	r := doctor.NewReport(doctor.Look(t.Context(), asControl(h.s, h.db)))
	wantIDs(t, r, "guard-owner", "guard-superuser", "write-all-data", "guard-not-always")
	want := append(before, "setter")
	slices.Sort(want)
	if got := h.goAround(t, "public.t", "keeper"); !slices.Equal(got, want) {
		t.Errorf("%v can go around the guard, want %v", got, want)
	}
	at := slices.IndexFunc(r.Findings, func(f doctor.Finding) bool { return f.ID == "guard-not-always" })
	if at < 0 || !strings.Contains(r.Findings[at].Seen, "which superusers, setter may set") || !strings.HasSuffix(r.Findings[at].Seen, " on public.t") {
		t.Errorf("the finding says %+v", r.Findings)
	}
}

// isOpenedByPgWriteAllData: what the finding write-all-data says.
func (h house) isOpenedByPgWriteAllData(t *testing.T) {
	h.s.Exec(t, pgtest.Control, h.db, "SELECT fencepost.raise_epoch(1, 6, 'me', '', '1 s', '1 s')")
	old := h.s.Connect(t, pgtest.App, h.db)
	write := func() error {
		_, err := old.Exec(t.Context(), "SELECT fencepost.claim('billing', 6); INSERT INTO public.t VALUES (1)")
		return err
	}
	if err := write(); err == nil || !strings.Contains(err.Error(), "ZF001") {
		t.Fatalf("under epoch 6: %v, want ZF001", err)
	}
	h.s.Exec(t, "writer", h.db, "UPDATE fencepost.fence SET epoch = 6")
	if err := write(); err != nil {
		t.Errorf("after the change: %v", err)
	}
}

// testAWorkerFromTwoPlacesIsNamed has connections of one name from two addresses, as those of
// two proxies with upstream.application_name = worker.
func testAWorkerFromTwoPlacesIsNamed(t *testing.T, s *pgtest.Server) {
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')")
	connect := func(user, host, name string) {
		cfg, err := pgx.ParseConfig(fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", host, s.Port(), user, db))
		if err != nil {
			t.Fatal(err)
		}
		cfg.RuntimeParams["application_name"] = name
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	one, other := "127.0.0.1", s.SocketDir()
	connect(pgtest.App, one, "billing/host-7")
	connect(pgtest.App, one, "cron [billing/host-7]")
	connect("md5_user", other, "billing/host-7") // another role's worker
	for _, host := range []string{one, other} {
		connect(pgtest.App, host, "other/host-8")
		connect(pgtest.App, host, "billing/"+strings.Repeat("x", 63)) // cut
	}
	wantIDs(t, doctor.NewReport(doctor.Look(t.Context(), asControl(s, db))))
	connect(pgtest.App, other, "psql [billing/host-7]")
	r := doctor.NewReport(doctor.Look(t.Context(), asControl(s, db)))
	wantIDs(t, r, "worker-places")
	if seen := r.Findings[0].Seen; !strings.HasSuffix(seen, ": billing/host-7 (127.0.0.1, a Unix socket)") {
		t.Errorf("the finding says %q", seen)
	}
}
