package guard_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database is a database with the resource billing, which has an epoch.
type database struct {
	t    *testing.T
	s    *pgtest.Server
	name string
}

const firstEpoch = 7

// newDatabase makes a database, and tables in it that the role app owns.
func newDatabase(t *testing.T, s *pgtest.Server, tables ...string) *database {
	t.Helper()
	d := &database{t, s, s.Database(t)}
	s.Exec(t, pgtest.Control, d.name, "SELECT fencepost.register('billing')", "SELECT fencepost.admit('app')")
	d.grant(firstEpoch)
	s.Exec(t, pgtest.App, d.name, tables...)
	return d
}

// grant puts the resource under an epoch.
func (d *database) grant(epoch int) {
	d.t.Helper()
	conn := d.s.Connect(d.t, pgtest.Control, d.name)
	var got int
	err := conn.QueryRow(d.ctx(), "SELECT fencepost.raise_epoch(id, $1, 'me', '', '1 s', '1 s') FROM fencepost.fence", epoch-1).Scan(&got)
	if err != nil || got != epoch {
		d.t.Fatalf("grant epoch %d: %d, %v", epoch, got, err)
	}
}

func (d *database) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	d.t.Cleanup(cancel)
	return ctx
}

func (d *database) super() *pgx.Conn { return d.s.Connect(d.t, pgtest.Superuser, d.name) }
func (d *database) app() *pgx.Conn   { return d.s.Connect(d.t, pgtest.App, d.name) }

func (d *database) add(o guard.Options) (guard.Guard, bool) {
	d.t.Helper()
	o.Resource = "billing"
	g, changed, err := guard.Add(d.ctx(), d.super(), o)
	if err != nil {
		d.t.Fatalf("guard %s: %v", o.Table, err)
	}
	return g, changed
}

// guarded returns how many tables the resource is recorded to guard.
func (d *database) guarded() (tables int) {
	d.t.Helper()
	if err := d.app().QueryRow(d.ctx(), "SELECT guarded_tables FROM fencepost.status").Scan(&tables); err != nil {
		d.t.Fatal(err)
	}
	return tables
}

const invoices = "CREATE TABLE public.invoices (id int, paid bool)"

// family is a partitioned table of two levels, and a table with a child.
var family = []string{
	"CREATE TABLE public.parted (id int, k int) PARTITION BY LIST (k)",
	"CREATE TABLE public.parted_1 PARTITION OF public.parted FOR VALUES IN (1)",
	"CREATE TABLE public.parted_2 PARTITION OF public.parted FOR VALUES IN (2, 3) PARTITION BY LIST (k)",
	"CREATE TABLE public.parted_23 PARTITION OF public.parted_2 FOR VALUES IN (3)",
	"CREATE TABLE public.parent (id int)",
	`CREATE TABLE public."Child" () INHERITS (public.parent)`,
}

func TestAddGuardsPartitionsAndChildren(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	for _, table := range []string{"public.parted", "public.parent"} {
		if g, changed := d.add(guard.Options{Table: table, Stamp: "fence_epoch"}); !changed || g.Stamp != "fence_epoch" {
			t.Errorf("%s: changed %t, %+v", table, changed, g)
		}
	}
	if n := d.guarded(); n != 2 {
		t.Errorf("%d tables are guarded, want 2", n)
	}
	app := d.app()
	for _, sql := range []string{
		"INSERT INTO public.parted VALUES (1, 1)", "INSERT INTO public.parted_1 VALUES (1, 1)", "INSERT INTO public.parted_23 VALUES (1, 3)",
		`INSERT INTO public."Child" VALUES (1)`, "INSERT INTO public.parent VALUES (1)",
		"TRUNCATE public.parted", "TRUNCATE public.parted_1", "TRUNCATE public.parted_2", "TRUNCATE public.parted_23", `TRUNCATE public."Child"`, "TRUNCATE public.parent",
	} {
		if _, err := app.Exec(d.ctx(), sql); pgtest.StateOf(err) != "ZF002" {
			t.Errorf("%s without a claim: %v, want ZF002", sql, err)
		}
	}
}

// TestASchemaThatTheControlRoleMayNotUse guards a table in it, lists the guard and removes
// it.
func TestASchemaThatTheControlRoleMayNotUse(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t))
	d.s.Exec(t, pgtest.Superuser, d.name, "CREATE SCHEMA own AUTHORIZATION app")
	d.s.Exec(t, pgtest.App, d.name, "CREATE TABLE own.t (id int)")
	d.add(guard.Options{Table: "own.t"})
	if _, err := d.app().Exec(d.ctx(), "INSERT INTO own.t VALUES (1)"); pgtest.StateOf(err) != "ZF002" {
		t.Errorf("without a claim: %v, want ZF002", err)
	}
	if list, err := guard.List(d.ctx(), d.super()); err != nil || len(list) != 1 || list[0].Table != "own.t" {
		t.Errorf("the guards are %+v, %v", list, err)
	}
	if g, err := guard.Remove(d.ctx(), d.super(), "own.t"); err != nil || g.Table != "own.t" {
		t.Errorf("removed %+v, %v", g, err)
	}
}

func TestAddAgainChangesOnlyWhatIsMissing(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	d.s.Exec(t, pgtest.Superuser, d.name, `DROP ROLE IF EXISTS "o'brien", "back\slash"`, // the test may run twice
		`CREATE ROLE "o'brien"`, `CREATE ROLE "back\slash"`)
	o := guard.Options{Table: "public.parted", Except: []string{"o'brien", `back\slash`}}
	d.add(o)
	if g, changed := d.add(o); changed || strings.Join(g.Except, " ") != strings.Join(o.Except, " ") {
		t.Errorf("again: changed %t, %+v", changed, g)
	}
	d.s.Exec(t, pgtest.App, d.name, "CREATE TABLE public.parted_9 PARTITION OF public.parted FOR VALUES IN (9)",
		"ALTER TABLE public.parted_1 DISABLE TRIGGER \"~fencepost\"")
	list, err := guard.List(d.ctx(), d.super())
	if err != nil || len(list) != 1 || strings.Join(list[0].Broken(), " ") != "public.parted_1 public.parted_9" {
		t.Errorf("with a new partition, and a disabled trigger: %+v, %v", list, err)
	}
	if g, changed := d.add(o); !changed || len(g.Broken()) > 0 {
		t.Errorf("to mend it: changed %t, %+v", changed, g)
	}
	o.Warn, o.Except = true, nil
	if g, changed := d.add(o); !changed || !g.Warn || len(g.Except) > 0 {
		t.Errorf("with another option: changed %t, %+v", changed, g)
	}
	if n := d.guarded(); n != 1 {
		t.Errorf("%d tables are guarded, want 1", n)
	}
}

func TestRemoveLeavesTheTableAsItWas(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), append(family, invoices)...)
	for _, table := range []string{"public.parted", "public.parent", "public.invoices"} {
		d.add(guard.Options{Table: table})
	}
	if _, err := guard.Remove(d.ctx(), d.super(), "public.parted_1"); err == nil || !strings.Contains(err.Error(), "as a part of public.parted") {
		t.Errorf("remove the guard of a partition: %v", err)
	}
	for left, table := range []string{"public.invoices", "public.parent", "public.parted"} {
		if _, err := guard.Remove(d.ctx(), d.super(), table); err != nil {
			t.Fatalf("remove the guard of %s: %v", table, err)
		}
		if n := d.guarded(); n != 2-left {
			t.Errorf("%d tables are guarded, want %d", n, 2-left)
		}
	}
	d.s.Exec(t, pgtest.App, d.name, "INSERT INTO public.parted VALUES (1, 1)", "TRUNCATE public.parted_1", "INSERT INTO public.parent VALUES (1)", "INSERT INTO public.invoices VALUES (1)")
	var left int
	if err := d.super().QueryRow(d.ctx(), "SELECT (SELECT count(*) FROM pg_trigger WHERE tgname LIKE '~fencepost%') + (SELECT count(*) FROM pg_proc WHERE proname ~ '^guard_[0-9]')").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d triggers and functions are left: %v", left, err)
	}
	if _, err := guard.Remove(d.ctx(), d.super(), "public.invoices"); err == nil || !strings.Contains(err.Error(), "is not guarded") {
		t.Errorf("remove it again: %v", err)
	}
}

func TestAddRefuses(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), append(family, invoices, "CREATE VIEW public.v AS SELECT 1 AS one", "CREATE TABLE public.odd (fence_epoch text)",
		`CREATE TABLE public.keyed (id bigint PRIMARY KEY, u bigint UNIQUE, ref bigint REFERENCES public.keyed, must bigint NOT NULL,
			identity bigint GENERATED BY DEFAULT AS IDENTITY, generated bigint GENERATED ALWAYS AS (1) STORED)`,
		"CREATE TABLE public.by_column (k bigint) PARTITION BY LIST (k)", "CREATE TABLE public.by_expression (k bigint) PARTITION BY LIST ((k % 2))")...)
	d.s.Exec(t, pgtest.Control, d.name, "SELECT fencepost.register('other')")
	d.add(guard.Options{Table: "public.parent"})
	for _, c := range []struct {
		o    guard.Options
		want string
	}{
		{guard.Options{Resource: "billing", Table: "public.missing"}, "there is no table public.missing"},
		{guard.Options{Resource: "billing", Table: "public.v"}, "only tables can be guarded"},
		{guard.Options{Resource: "typo", Table: "public.invoices"}, `no resource "typo"`},
		{guard.Options{Resource: "billing", Table: "public.odd", Stamp: "fence_epoch"}, "must be a plain bigint"},
		{guard.Options{Resource: "billing", Table: "public.invoices", Stamp: strings.Repeat("x", 60)}, "too long for a stamp"},
		{guard.Options{Resource: "other", Table: "public.parent"}, `guarded by resource "billing"`},
		{guard.Options{Resource: "billing", Table: `public."Child"`}, "as a part of public.parent"},
		{guard.Options{Resource: "billing", Table: "fencepost.fence"}, "a table of Fencepost itself"},
		{guard.Options{Resource: "billing", Table: "public.invoices", Except: []string{"nosuchrole"}}, `no role "nosuchrole"`},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "id"}, "part of a primary key"},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "u"}, "another that is unique"},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "ref"}, "part of a foreign key"},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "identity"}, "must be a plain bigint"},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "generated"}, "must be a plain bigint"},
		{guard.Options{Resource: "billing", Table: "public.by_column", Stamp: "k"}, "part of the partition key"},
		{guard.Options{Resource: "billing", Table: "public.by_expression", Stamp: "k"}, "part of the partition key"},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "must", Warn: true}, "is NOT NULL"},
		{guard.Options{Resource: "billing", Table: "public.keyed", Stamp: "must", Except: []string{pgtest.App}}, "is NOT NULL"},
	} {
		if _, _, err := guard.Add(d.ctx(), d.super(), c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
	if _, _, err := guard.Add(d.ctx(), d.app(), guard.Options{Resource: "billing", Table: "public.invoices"}); err == nil || !strings.Contains(err.Error(), "member of the control role") {
		t.Errorf("as a role that is not a member of the control role: %v", err)
	}
	if _, changed := d.add(guard.Options{Table: "public.keyed", Stamp: "must"}); !changed {
		t.Error("a stamp that is NOT NULL, where nobody is let pass, was not added")
	}
	if n := d.guarded(); n != 2 {
		t.Errorf("%d tables are guarded after the refusals, want 2", n)
	}
}

func TestAddByTheOwner(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	d := newDatabase(t, s, invoices)
	s.Exec(t, pgtest.Superuser, d.name, "GRANT fencepost TO app")
	if _, changed, err := guard.Add(d.ctx(), d.app(), guard.Options{Resource: "billing", Table: "public.invoices", Stamp: "e"}); err != nil || !changed {
		t.Fatalf("as the owner, a member of the control role: changed %t, %v", changed, err)
	}
	if _, err := guard.Remove(d.ctx(), d.app(), "public.invoices"); err != nil {
		t.Error(err)
	}
}

// TestAddWaitsForTheTable adds a guard while transactions use the table: no one who comes
// later waits for longer than the timeout of its lock.
func TestAddWaitsForTheTable(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), invoices)
	holder, later := d.app(), d.app()
	tx, err := holder.Begin(d.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	added, conn := make(chan error, 1), d.super()
	go func() {
		_, _, err := guard.Add(context.Background(), conn, guard.Options{Resource: "billing", Table: "public.invoices"})
		added <- err
	}()
	waiting := func() (n int) {
		if err := d.super().QueryRow(d.ctx(), "SELECT count(*) FROM pg_locks WHERE relation = 'public.invoices'::regclass AND NOT granted").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for waiting() == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := later.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (2)"); err != nil { // behind the guard, in the queue of the lock
		t.Fatal(err)
	}
	select {
	case err := <-added:
		t.Fatalf("the guard did not wait: %v", err)
	default:
	}
	if err := tx.Commit(d.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	if _, err := later.Exec(d.ctx(), "INSERT INTO public.invoices VALUES (3)"); pgtest.StateOf(err) != "ZF002" {
		t.Errorf("a write under the guard: %v, want ZF002", err)
	}
}

// log returns the lines of the server's log that Fencepost's triggers have written about a
// table.
func (d *database) log(table string) (lines []string) {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.s.SocketDir(), "server.log"))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "is let pass") && strings.Contains(line, table) {
			lines = append(lines, line)
		}
	}
	return lines
}
