package system

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

// TestPostgresIsRestoredFromADumpTakenAcrossAGrant checks that a running proxy grants
// no epoch twice. Its error says what an operator has to run, and running that
// continues above all epochs.
func TestPostgresIsRestoredFromADumpTakenAcrossAGrant(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", onServer(pgtest.Start(t, pgtest.WithTools(t))))
	p := h.proxy()
	h.join(p, "a", "campaign", "wait").leave()
	dump := h.dump(func() {
		h.join(p, "b", "campaign", "wait").leave()
	})
	c := h.join(p, "c", "campaign", "wait")
	c.must("INSERT INTO work VALUES ('c')")
	h.load(dump)
	if row := ask[int](h, "SELECT epoch FROM fencepost.fence"); row != 1 {
		t.Fatalf("the restored row has epoch %d, so the test proves nothing", row)
	}

	if err := c.exec("INSERT INTO work VALUES ('c, of the lost epoch')"); err == nil {
		t.Error("a write under the lost epoch succeeded")
	}
	for _, worker := range []string{"d", "c"} {
		// The proxy may first have to notice that its connections are gone.
		process.Eventually(t, process.Patience, "an error that says what to run", func() bool {
			_, err := h.tryJoin(process.Patience, p, worker, "campaign", "wait")
			f := failureOf(err)
			if f == nil || f.Code != fencing.StateNoFence {
				t.Fatalf("connecting to the restored database: %v; want ZF004", f)
			}
			return strings.Contains(f.Hint, "fencepost generation bump")
		})
	}
	if got := h.granted(); got != "a" {
		t.Errorf("granted %q in the restored database", got)
	}
	awaitFault(t, p, faults.Fence, "fencepost generation bump")
	process.Eventually(t, process.Patience, "fencepost status to show that the database was restored", func() bool { // a's restored lease may have to expire
		_, shown := h.command("status", "--admin", p.Admin)
		return strings.Contains(shown, "blocked") && strings.Contains(shown, "restored from an older state")
	})
	if code, out := h.command("generation", "bump", "--database", h.db, "--above", "3"); code != 0 || !strings.Contains(out, "epoch 4") {
		t.Fatalf("generation bump: code %d: %s", code, out)
	}
	var d *client
	process.Eventually(t, process.Patience, "d to lead", func() (ok bool) {
		var err error
		d, err = h.tryJoin(process.Patience, p, "d", "campaign", "wait")
		return err == nil
	})
	d.must("INSERT INTO work VALUES ('d')")
	awaitNoFault(t, p, faults.Fence)
	if h.epoch() != 5 || d.show("epoch") != "5" {
		t.Errorf("the epoch is %d, d got %s; want 5", h.epoch(), d.show("epoch"))
	}
	if got := strings.Join(h.works(), " "); got != "d" {
		t.Errorf("the table contains %q", got)
	}
}

// dump dumps the database as of the call, except for what pg_dump reads without a
// snapshot (sequences), which it reads after meanwhile.
func (h *cluster) dump(meanwhile func()) []byte {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	tx, err := h.pg.Connect(h.t, pgtest.Superuser, h.db).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		h.t.Fatal(err)
	}
	var snapshot string
	if err := tx.QueryRow(ctx, "SELECT pg_export_snapshot()").Scan(&snapshot); err != nil {
		h.t.Fatal(err)
	}
	meanwhile()
	dump, err := exec.Command(h.pg.Program(h.t, "pg_dump"), "--snapshot", snapshot, "-d", h.pg.DSN(pgtest.Superuser, h.db)).Output()
	if err != nil {
		h.t.Fatalf("pg_dump: %v", err)
	}
	if err := tx.Rollback(ctx); err != nil {
		h.t.Fatal(err)
	}
	return dump
}

// load replaces the database by the dumped one while the proxies are running.
func (h *cluster) load(dump []byte) {
	h.t.Helper()
	h.pg.Exec(h.t, pgtest.Superuser, "postgres", "DROP DATABASE "+h.db+" WITH (FORCE)", "CREATE DATABASE "+h.db,
		"GRANT CREATE ON DATABASE "+h.db+" TO "+pgtest.Control)
	load := exec.Command(h.pg.Program(h.t, "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", h.pg.DSN(pgtest.Superuser, h.db))
	load.Stdin = strings.NewReader(string(dump))
	if out, err := load.CombinedOutput(); err != nil {
		h.t.Fatalf("psql: %v: %s", err, out)
	}
}

// TestSafetyAFailoverOfRedisForgets: a replica takes the place of the master, and does not know the
// newest award. The old master goes on for the proxy of the old leader. The leader of the new master
// writes, and the old one never again, whatever the old master awards it.
func TestSafetyAFailoverOfRedisForgets(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.Start(t, redistest.WithReplicaOf(master))
	h := newCluster(t, "redis")
	at := func(s *redistest.Server) *process.Server { return h.proxy("ELECTION_REDIS_ADDRESS=" + s.Addr()) }
	one := at(master)
	seed := h.join(one, "seed", "campaign", "wait")
	seed.leave()
	master.AwaitReplicas(t, 1)
	replica.Promote(t)
	old := h.join(one, "old", "campaign", "wait") // an award that the new master does not know
	old.must("INSERT INTO work VALUES ('old')")

	two := at(replica)
	next := h.join(two, "next", "campaign", "wait")
	if epoch := next.show("epoch"); epoch != "3" {
		t.Errorf("the leader at the new master has epoch %s", epoch)
	}
	next.must("INSERT INTO work VALUES ('next')")
	if err := old.exec("INSERT INTO work VALUES ('late')"); stateOf(err) != fencing.StateSuperseded {
		t.Errorf("the old leader's write ended with %v", err)
	}
	again := h.join(one, "again") // the old master awards it the lease, and the fence refuses the award
	if err := again.exec("INSERT INTO work VALUES ('again')"); err == nil {
		t.Error("a worker at the old master has written")
	}
	next.must("INSERT INTO work VALUES ('next')")
	if got := strings.Join(h.works(), " "); got != "old next next" {
		t.Errorf("the table holds %q", got)
	}
	if got := h.granted(); got != "seed old next" {
		t.Errorf("epochs were granted to %q", got)
	}
}
