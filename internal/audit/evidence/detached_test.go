package evidence_test

import (
	"testing"

	"github.com/fencepost/fencepost/internal/guard"
)

// partitioned makes a stamped, partitioned table with a row in each partition.
func (d *database) partitioned() {
	d.t.Helper()
	d.app("CREATE TABLE public.parts (id bigint, note text) PARTITION BY LIST (id)", "CREATE TABLE public.p2 PARTITION OF public.parts FOR VALUES IN (2)",
		"CREATE TABLE public.p4 PARTITION OF public.parts FOR VALUES IN (4, 5) PARTITION BY LIST (id)", "CREATE TABLE public.p5 PARTITION OF public.p4 DEFAULT")
	if _, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "billing", Table: "public.parts", Stamp: "fence_epoch"}); err != nil {
		d.t.Fatal(err)
	}
	d.write("INSERT INTO public.parts VALUES (2), (5)")
}

// detached are the states of a database in which something was a partition of a stamped table, or
// looks so.
var detached = map[string]state{
	"a detached partition": {func(d *database) {
		d.partitioned()
		d.grant()
		d.app("ALTER TABLE public.parts DETACH PARTITION public.p2")
	}, "unverified", "NOT VERIFIED public.p2: nothing stamps its rows any more"},
	"a late row in a detached partition": {func(d *database) {
		d.partitioned()
		d.grant()
		d.app(`ALTER TABLE public.p2 DISABLE TRIGGER "~fencepost"`, "UPDATE public.p2 SET note = 'late'", "ALTER TABLE public.parts DETACH PARTITION public.p2")
	}, "found", `FOUND public.p2: transaction `},
	"a row written since its partition was detached": {func(d *database) {
		d.partitioned()
		d.grant()
		d.app("ALTER TABLE public.parts DETACH PARTITION public.p2", "UPDATE public.p2 SET note = 'archived'")
	}, "unverified", "NOT VERIFIED public.p2: 1 rows of epoch 1: they were written when nothing stamped the table's rows"},
	"a detached partition without any trigger": {func(d *database) {
		d.partitioned()
		d.app("CREATE TABLE public.p3 PARTITION OF public.parts FOR VALUES IN (3)") // it has no trigger for TRUNCATE
		d.write("INSERT INTO public.parts VALUES (3)")
		d.grant()
		d.app("ALTER TABLE public.parts DETACH PARTITION public.p3")
	}, "unverified", "NOT VERIFIED public.p3: nothing stamps its rows any more"},
	"a detached tree of partitions": {func(d *database) {
		d.partitioned()
		d.grant()
		d.app("ALTER TABLE public.parts DETACH PARTITION public.p4")
	}, "unverified", "NOT VERIFIED public.p5: nothing stamps its rows any more"},
	"a detached partition that is guarded by its own name": {func(d *database) {
		d.partitioned()
		d.grant()
		d.app("ALTER TABLE public.parts DETACH PARTITION public.p2")
		if _, _, err := guard.Add(d.ctx(), d.super(), guard.Options{Resource: "billing", Table: "public.p2", Stamp: "fence_epoch"}); err != nil {
			d.t.Fatal(err)
		}
	}, "ok", "public.p2"},
	"a detached partition whose column was renamed": {func(d *database) {
		d.partitioned()
		d.app("ALTER TABLE public.parts DETACH PARTITION public.p2", "ALTER TABLE public.p2 RENAME fence_epoch TO epoch_of_old")
	}, "ok", "public.p5"},
	"a table like a stamped one": {func(d *database) {
		d.partitioned()
		d.app("CREATE TABLE public.p6 (LIKE public.parts)", "INSERT INTO public.p6 VALUES (6)")
	}, "ok", "public.p2"},
}

// TestDetached: Postgres drops the trigger that stamps the rows of a partition when it is detached.
func TestDetached(t *testing.T) {
	t.Parallel()
	test(t, detached)
}
