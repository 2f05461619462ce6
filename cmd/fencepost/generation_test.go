package main

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// lead lets a worker lead once through a separate proxy, which then ends, and returns
// the worker's epoch.
func lead(t *testing.T, s *pgtest.Server, db, worker string, change func(*config.Config)) string {
	t.Helper()
	r := servicetest.Start(t, s, change)
	conn := r.Connect(t, db, "fencepost.resource=billing&fencepost.campaign=wait&fencepost.worker="+worker)
	epoch := conn.PgConn().ParameterStatus("fencepost.epoch")
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	return epoch
}

func wantEpoch(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("epoch %s, want %s", got, want)
	}
}

// generation returns the generation of the resource's last grant.
func generation(t *testing.T, s *pgtest.Server, db string) (n int) {
	t.Helper()
	row := s.Connect(t, pgtest.Superuser, db).QueryRow(context.Background(), "SELECT source_generation FROM fencepost.fence")
	if err := row.Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestGenerationBumpWithTheEmbeddedElector(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	env := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	wantEpoch(t, lead(t, s, db, "a", nil), "1")

	out := runCommand(t, env, "generation", "bump", "--database", db)
	if out.code != exitOK || !strings.Contains(out.stdout, "a new generation of the elector") || !strings.Contains(out.stdout, "epochs are unchanged") {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	wantEpoch(t, lead(t, s, db, "b", nil), "2")
	if n := generation(t, s, db); n != 2 {
		t.Errorf("the award is of generation %d, want 2", n)
	}

	out = runCommand(t, env, "generation", "bump", "--database", db, "--above", "400000000000")
	if out.code != exitFailure || !strings.Contains(out.stderr, "nothing changed: --above 400000000000 is far above the highest recorded epoch") {
		t.Errorf("a mistyped epoch: code %d, %s%s", out.code, out.stdout, out.stderr)
	}
	out = runCommand(t, env, "generation", "bump", "--database", db, "--above", "40")
	if out.code != exitOK || !strings.Contains(out.stdout, "resource billing is now at epoch 41") {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	wantEpoch(t, lead(t, s, db, "c", nil), "42")

	out = runCommand(t, env, "generation", "bump", "--database", db, "--above", "41")
	if out.code != exitOK || !strings.Contains(out.stdout, "resource billing stays at epoch 42, which is above 41 already") {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

// belowFence returns what fencepost doctor says in the finding awards-below-fence, "" if it does not
// have it.
func belowFence(t *testing.T, s *pgtest.Server, db string, env map[string]string) string {
	t.Helper()
	full := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	maps.Copy(full, env)
	out := runCommand(t, full, "doctor", "--json", "--database", db)
	var report struct {
		Findings []struct{ Severity, ID, Where, Seen, Do string }
		Failures []string
	}
	if err := json.Unmarshal([]byte(out.stdout), &report); err != nil || len(report.Failures) > 0 {
		t.Fatalf("%v in %s%s", err, out.stdout, out.stderr)
	}
	var found []string
	for _, f := range report.Findings {
		if f.ID == "awards-below-fence" && f.Severity == "error" && f.Where == "database "+db {
			found = append(found, f.Seen+". "+f.Do)
		}
	}
	return strings.Join(found, "; ")
}

// TestDoctorFindsAnotherLeaseService: the fence records an award of another one than is configured.
func TestDoctorFindsAnotherLeaseService(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	agent := consultest.Start(t)
	consul := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "consul", "FENCEPOST_ELECTION_CONSUL_ADDRESS": agent.Addr()}
	want := func(env map[string]string, texts ...string) {
		t.Helper()
		got := belowFence(t, s, db, env)
		for _, text := range texts {
			if text == "" && got != "" || !strings.Contains(got, text) {
				t.Errorf("the doctor with %s says %q, want %q", env["FENCEPOST_ELECTION_PROVIDER"], got, text)
			}
		}
	}
	want(consul, "") // nobody was granted an epoch yet
	wantEpoch(t, lead(t, s, db, "a", nil), "1")
	wantEpoch(t, lead(t, s, db, "b", func(c *config.Config) {
		c.Election.Provider, c.Election.Consul.Address = "consul", agent.Addr()
	}), "2")
	want(consul, "")
	const seen = "the fence records an award of consul (generation 2), but postgres is configured, whose awards are older (generation 1): resource billing"
	want(nil, seen, "run fencepost generation bump --database "+db, "If other proxies of this database use consul, configure the same election.provider for all", "workers get ZF004")
	env := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	if out := runCommand(t, env, "evict", "billing", "--database", db); out.code != exitOK {
		t.Fatalf("evict: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	want(nil, "the fence records an award of consul (generation 2)") // and not of the operator
	if out := runCommand(t, env, "generation", "bump", "--database", db); out.code != exitOK {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	want(nil, "")
}

// TestDoctorFindsARestoredLeaseService: etcd has lost the awards that the fence records.
func TestDoctorFindsARestoredLeaseService(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	cluster := etcdtest.Start(t)
	env := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "etcd", "FENCEPOST_ELECTION_ETCD_ENDPOINTS": cluster.Addr()}
	byEtcd := func(c *config.Config) {
		c.Election.Provider, c.Election.Etcd.Endpoints = "etcd", config.Addresses{config.Address(cluster.Addr())}
	}
	wantEpoch(t, lead(t, s, db, "a", byEtcd), "1")
	backup := cluster.Backup(t)
	wantEpoch(t, lead(t, s, db, "b", byEtcd), "2")
	if got := belowFence(t, s, db, env); got != "" {
		t.Errorf("before: %s", got)
	}
	cluster.Restore(t, backup)
	const seen, do = "as if it had been restored from an older state: resource billing", "run fencepost generation bump"
	if got := belowFence(t, s, db, env); !strings.HasPrefix(got, "etcd has counted its awards to ") || !strings.Contains(got, seen) || !strings.Contains(got, do) {
		t.Errorf("after: %q, want %q and %q", got, seen, do)
	}
	if out := runCommand(t, env, "generation", "bump"); out.code != exitOK {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	if got := belowFence(t, s, db, env); got != "" {
		t.Errorf("in a new generation: %s", got)
	}
	wantEpoch(t, lead(t, s, db, "c", byEtcd), "3")
}
