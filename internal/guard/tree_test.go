package guard_test

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAPartOfAnotherGuardIsNotTakenOver guards a child and a partition by another resource
// first.
func TestAPartOfAnotherGuardIsNotTakenOver(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	d.s.Exec(t, pgtest.Control, d.name, "SELECT fencepost.register('other')")
	for _, table := range []string{`public."Child"`, "public.parted_23"} {
		if _, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "other", Table: table}); err != nil {
			t.Fatal(err)
		}
	}
	for table, part := range map[string]string{"public.parent": `public."Child"`, "public.parted": "public.parted_23"} {
		_, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "billing", Table: table})
		if err == nil || !strings.Contains(err.Error(), "table "+part+` is guarded by resource "other"`) {
			t.Errorf("%s: %v", table, err)
		}
	}
	if got := d.listed(); got != `public."Child" public.parted_23` {
		t.Errorf("the guards are %s", got)
	}
}

// TestADetachedPartitionIsATableOfItsOwn: it has kept the trigger for TRUNCATE, and can be
// guarded, or what is left removed.
func TestADetachedPartitionIsATableOfItsOwn(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	d.add(guard.Options{Table: "public.parted", Stamp: "fence_epoch"})
	d.s.Exec(t, pgtest.App, d.name, "ALTER TABLE public.parted DETACH PARTITION public.parted_1", "ALTER TABLE public.parted DETACH PARTITION public.parted_2")
	if got := d.listed(); got != "public.parted public.parted_1 public.parted_2" {
		t.Errorf("the guards are %s", got)
	}
	if g, changed := d.add(guard.Options{Table: "public.parted_1", Stamp: "fence_epoch"}); !changed || len(g.Broken()) > 0 {
		t.Errorf("guard the detached partition: changed %t, %+v", changed, g)
	}
	if _, err := d.app().Exec(d.ctx(), "INSERT INTO public.parted_1 VALUES (1, 1)"); pgtest.StateOf(err) != "ZF002" {
		t.Errorf("a write of the detached partition: %v, want ZF002", err)
	}
	if _, err := guard.Remove(d.ctx(), d.super(), "public.parted_2"); err != nil {
		t.Error(err)
	}
	d.s.Exec(t, pgtest.App, d.name, "INSERT INTO public.parted_23 VALUES (1, 3)", "TRUNCATE public.parted_2")
}

// TestAPartitionIsDetachedAndAttachedWithoutAGap: as docs/guards.md says.
func TestAPartitionIsDetachedAndAttachedWithoutAGap(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	d.add(guard.Options{Table: "public.parted"})
	app := d.app()
	for _, sql := range []string{
		`BEGIN; ALTER TABLE public.parted DETACH PARTITION public.parted_1;
		CREATE TRIGGER "~fencepost" BEFORE INSERT OR UPDATE OR DELETE ON public.parted_1 FOR EACH ROW EXECUTE FUNCTION fencepost.guard_1('refuse');
		ALTER TABLE public.parted_1 ENABLE ALWAYS TRIGGER "~fencepost"; COMMIT`,
		`BEGIN; DROP TRIGGER "~fencepost" ON public.parted_1; ALTER TABLE public.parted ATTACH PARTITION public.parted_1 FOR VALUES IN (1); COMMIT`,
	} {
		if _, err := app.Exec(d.ctx(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if _, err := app.Exec(d.ctx(), "INSERT INTO public.parted_1 VALUES (1, 1)"); pgtest.StateOf(err) != "ZF002" {
			t.Errorf("a write after %s: %v, want ZF002", sql, err)
		}
		list, err := guard.List(d.ctx(), d.super())
		for _, g := range list {
			if len(g.Broken()) > 0 {
				t.Errorf("after %s: %+v", sql, g)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := d.listed(); got != "public.parted" {
		t.Errorf("the guards are %s", got)
	}
}

// TestTriggersUnderOtherNames are put right, and removed.
func TestTriggersUnderOtherNames(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), append(family, invoices)...)
	for _, table := range []string{"public.invoices", "public.parted"} {
		o := guard.Options{Table: table, Stamp: "fence_epoch"}
		d.add(o)
		rename := []string{`ALTER TRIGGER "~fencepost" ON ` + table + " RENAME TO x", `ALTER TRIGGER "~fencepost_truncate" ON ` + table + " RENAME TO y"}
		d.s.Exec(t, pgtest.App, d.name, rename...)
		o.Except = []string{pgtest.Superuser}
		if g, changed := d.add(o); !changed || len(g.Broken()) > 0 {
			t.Errorf("%s: changed %t, %+v", table, changed, g)
		}
		d.s.Exec(t, pgtest.App, d.name, rename...)
		if _, err := guard.Remove(d.ctx(), d.super(), table); err != nil {
			t.Error(err)
		}
	}
	d.s.Exec(t, pgtest.App, d.name, "INSERT INTO public.invoices VALUES (1)", "TRUNCATE public.invoices", "INSERT INTO public.parted VALUES (1, 1)", "TRUNCATE public.parted")
	if got := d.listed(); got != "" || d.guarded() != 0 {
		t.Errorf("the guards are %s, and %d are recorded", got, d.guarded())
	}
}

// TestATriggerAfterAStampIsRefused, and named if it comes later. Without a stamp it does not
// matter.
func TestATriggerAfterAStampIsRefused(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	const later = `CREATE TRIGGER "~zeta" BEFORE INSERT ON public."Child" FOR EACH ROW EXECUTE FUNCTION public.change()`
	d.s.Exec(t, pgtest.App, d.name, "CREATE FUNCTION public.change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'", later,
		`CREATE TRIGGER "~after" AFTER INSERT ON public.parent FOR EACH ROW EXECUTE FUNCTION public.change()`,
		`CREATE TRIGGER "before" BEFORE INSERT ON public.parent FOR EACH ROW EXECUTE FUNCTION public.change()`)
	d.add(guard.Options{Table: "public.parent"})
	o := guard.Options{Resource: "billing", Table: "public.parent", Stamp: "fence_epoch"}
	if _, _, err := guard.Add(d.ctx(), d.super(), o); err == nil || !strings.Contains(err.Error(), `"~zeta" on public."Child"`) {
		t.Errorf("with a trigger behind: %v", err)
	}
	d.s.Exec(t, pgtest.App, d.name, `DROP TRIGGER "~zeta" ON public."Child"`)
	if g, _ := d.add(o); len(g.LaterTriggers()) > 0 {
		t.Errorf("without it: %v", g.LaterTriggers())
	}
	d.s.Exec(t, pgtest.App, d.name, later)
	if list, err := guard.List(d.ctx(), d.super()); err != nil || len(list) != 1 || strings.Join(list[0].LaterTriggers(), ", ") != `~zeta on public."Child"` {
		t.Errorf("with a later trigger: %+v, %v", list, err)
	}
}

// TestAddForANewChildLeavesTheOthersAlone: it does not wait for a transaction that uses what
// is guarded already.
func TestAddForANewChildLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, pgtest.Shared(t), family...)
	o := guard.Options{Table: "public.parent", Stamp: "fence_epoch"}
	d.add(o)
	tx, err := d.app().Begin(d.ctx())
	if err != nil {
		t.Fatal(err)
	}
	d.s.Exec(t, pgtest.App, d.name, "CREATE TABLE public.late () INHERITS (public.parent)")
	if _, err := tx.Exec(d.ctx(), `SELECT fencepost.claim('billing', 7); INSERT INTO public.parent VALUES (1); INSERT INTO public."Child" VALUES (1)`); err != nil {
		t.Fatal(err)
	}
	if g, changed := d.add(o); !changed || len(g.Broken()) > 0 {
		t.Errorf("changed %t, %+v", changed, g)
	}
	if err := tx.Commit(d.ctx()); err != nil {
		t.Error(err)
	}
}
