package main

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

func TestGenerationBumpSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"bump"}, "--database is required"},
		{[]string{"bump", "--above", "7"}, "--database is required"},
		{[]string{"bump", "--database", "d", "--above", "-1"}, "an epoch must be positive"},
		{[]string{"bump", "--database", "d", "--above", "4611686018427387905"}, "the highest possible is 4611686018427387904"},
		{[]string{"bump", "--database", "d", "--above", "7", "--restored"}, "mutually exclusive"},
		{[]string{"dump"}, "unexpected argument"},
	} {
		out := runCommand(t, nil, append([]string{"generation"}, c.args...)...)
		if out.code != exitUsage || !strings.Contains(out.stderr, c.want) {
			t.Errorf("%v: code %d, %q does not contain %q", c.args, out.code, out.stderr, c.want)
		}
	}
}

// lead lets a worker lead once through a separate proxy, which then ends, and returns
// the worker's epoch.
func lead(t *testing.T, s *pgtest.Server, db, worker string, change func(*config.Config)) string {
	t.Helper()
	r := startServing(t, s, change)
	conn := r.connect(t, db, "fencepost.resource=billing&fencepost.campaign=wait&fencepost.worker="+worker)
	epoch := conn.PgConn().ParameterStatus("fencepost.epoch")
	if err := conn.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
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

func TestGenerationBumpWithConsul(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	agent := consultest.Start(t)
	byConsul := func(c *config.Config) {
		c.Election.Provider = "consul"
		c.Election.Consul.Address = agent.Addr()
	}
	wantEpoch(t, lead(t, s, db, "a", byConsul), "1")
	marker := func() string {
		return string(agent.Request(t, "GET", "/v1/kv/fencepost/.generation?raw", nil))
	}
	before := marker()
	env := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "consul", "FENCEPOST_ELECTION_CONSUL_ADDRESS": agent.Addr()}
	out := runCommand(t, env, "generation", "bump")
	if out.code != exitOK || !strings.Contains(out.stdout, marker()) {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	if before == "" || marker() == before {
		t.Errorf("the instance id was %q and is %q", before, marker())
	}
	wantEpoch(t, lead(t, s, db, "b", byConsul), "2")
	if n := generation(t, s, db); n != 2 {
		t.Errorf("the award is of generation %d, want 2", n)
	}
}

func TestGenerationBumpWithEtcd(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	cluster := etcdtest.Shared(t)
	byEtcd := func(c *config.Config) {
		c.Election.Provider = "etcd"
		c.Election.Etcd.Endpoints = config.Addresses{config.Address(cluster.Addr())}
		c.Election.Etcd.Prefix = db
	}
	wantEpoch(t, lead(t, s, db, "a", byEtcd), "1")
	env := map[string]string{
		"FENCEPOST_ELECTION_PROVIDER": "etcd", "FENCEPOST_ELECTION_ETCD_ENDPOINTS": cluster.Addr(), "FENCEPOST_ELECTION_ETCD_PREFIX": db,
	}
	out := runCommand(t, env, "generation", "bump")
	if out.code != exitOK || !strings.Contains(out.stdout, "etcd: started a new generation under "+db+"/, ") {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	wantEpoch(t, lead(t, s, db, "b", byEtcd), "2")
	if n := generation(t, s, db); n != 2 {
		t.Errorf("the award is of generation %d, want 2", n)
	}
	env["FENCEPOST_ELECTION_ETCD_ENDPOINTS"] = "127.0.0.1:1"
	out = runCommand(t, env, "generation", "bump")
	if out.code != exitFailure || !strings.Contains(out.stderr, "etcd at 127.0.0.1:1 cannot be reached") || !strings.Contains(out.stderr, "election.etcd.endpoints is right") {
		t.Errorf("without etcd: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

func TestGenerationBumpWithZooKeeper(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	ensemble := zookeepertest.Shared(t)
	byZooKeeper := func(c *config.Config) {
		c.Election.Provider = "zookeeper"
		c.Election.ZooKeeper.Servers = config.Addresses{config.Address(ensemble.Addr())}
		c.Election.ZooKeeper.Prefix = db
	}
	wantEpoch(t, lead(t, s, db, "a", byZooKeeper), "1")
	env := map[string]string{
		"FENCEPOST_ELECTION_PROVIDER": "zookeeper", "FENCEPOST_ELECTION_ZOOKEEPER_SERVERS": ensemble.Addr(), "FENCEPOST_ELECTION_ZOOKEEPER_PREFIX": db,
	}
	out := runCommand(t, env, "generation", "bump")
	if out.code != exitOK || !strings.Contains(out.stdout, "zookeeper: started a new generation under "+db+"/, ") {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	wantEpoch(t, lead(t, s, db, "b", byZooKeeper), "2")
	if n := generation(t, s, db); n != 2 {
		t.Errorf("the award is of generation %d, want 2", n)
	}
	env["FENCEPOST_ELECTION_ZOOKEEPER_SERVERS"] = "127.0.0.1:1"
	out = runCommand(t, env, "generation", "bump")
	if out.code != exitFailure || !strings.Contains(out.stderr, "ZooKeeper at 127.0.0.1:1 cannot be reached") || !strings.Contains(out.stderr, "election.zookeeper.servers is right") {
		t.Errorf("without ZooKeeper: code %d\n%s%s", out.code, out.stdout, out.stderr)
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
	agent, cluster := consultest.Start(t), etcdtest.Shared(t)
	consul := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "consul", "FENCEPOST_ELECTION_CONSUL_ADDRESS": agent.Addr()}
	etcd := map[string]string{
		"FENCEPOST_ELECTION_PROVIDER": "etcd", "FENCEPOST_ELECTION_ETCD_ENDPOINTS": cluster.Addr(), "FENCEPOST_ELECTION_ETCD_PREFIX": db,
	}
	byConsul := func(c *config.Config) {
		c.Election.Provider, c.Election.Consul.Address = "consul", agent.Addr()
	}
	byEtcd := func(c *config.Config) {
		c.Election.Provider, c.Election.Etcd.Endpoints, c.Election.Etcd.Prefix = "etcd", config.Addresses{config.Address(cluster.Addr())}, db
	}
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
	wantEpoch(t, lead(t, s, db, "b", byConsul), "2")
	want(nil, "the fence records an award of consul (generation 2), but postgres is configured, whose awards are older (generation 1): resource billing",
		"run fencepost generation bump --database "+db)
	want(consul, "")
	wantEpoch(t, lead(t, s, db, "c", byEtcd), "3")
	want(etcd, "")
	want(consul, "the fence records an award of etcd (generation 3), but consul is configured, whose awards are older (generation 2): resource billing",
		"If other proxies of this database use etcd, configure the same election.provider for all", "workers get ZF004")

	if out := runCommand(t, map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}, "evict", "billing", "--database", db); out.code != exitOK {
		t.Fatalf("evict: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	want(consul, "the fence records an award of etcd (generation 3)") // and not of the operator

	if out := runCommand(t, consul, "generation", "bump"); out.code != exitOK {
		t.Fatalf("code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
	want(consul, "")
	wantEpoch(t, lead(t, s, db, "d", byConsul), "5")
	want(consul, "")
	want(etcd, "the fence records an award of consul (generation 4), but etcd is configured")
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

func TestReadinessTellsThatTheLeaseServiceIsAwayAndStaysReady(t *testing.T) {
	t.Parallel()
	for provider, want := range map[string]string{"consul": "127.0.0.1:1", "etcd": "etcd at 127.0.0.1:1 cannot be reached", "redis": "Redis at 127.0.0.1:1 cannot be reached"} {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			s := pgtest.Shared(t)
			r := startServing(t, s, func(c *config.Config) {
				c.Election.Provider = provider
				c.Election.Consul.Address = "127.0.0.1:1"
				c.Election.Etcd.Endpoints = config.Addresses{"127.0.0.1:1"}
				c.Election.Redis.Address = "127.0.0.1:1"
			})
			eventually(t, "/readyz to tell that the service is away", func() bool {
				code, body := r.ask(t, "/readyz")
				return code == http.StatusOK && !strings.Contains(body, `"election": "ok"`) && strings.Contains(body, want)
			})
		})
	}
}

// asked is a standard output that says when the question has been written to it.
type asked struct {
	strings.Builder
	question chan struct{}
}

func (a *asked) Write(text []byte) (int, error) {
	n, err := a.Builder.Write(text)
	if strings.Contains(string(text), "Type yes") {
		close(a.question)
	}
	return n, err
}

// TestTheQuestionOfRestoredEndsWithTheFirstSignal: nobody answers, and nothing changes.
func TestTheQuestionOfRestoredEndsWithTheFirstSignal(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	s.Exec(t, pgtest.Control, db, "SELECT fencepost.register('billing')")
	env := map[string]string{"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control}
	stdin, typed := io.Pipe()
	t.Cleanup(func() { _ = typed.Close() })
	ctx, interrupt := context.WithCancel(t.Context())
	stdout, stderr := &asked{question: make(chan struct{})}, &strings.Builder{}
	code := make(chan int)
	go func() {
		code <- run(ctx, terminal{stdin: stdin, stdout: stdout, stderr: stderr, getenv: func(name string) string { return env[name] },
			environ: func() (list []string) {
				for name, value := range env {
					list = append(list, name+"="+value)
				}
				return list
			}}, []string{"generation", "bump", "--database", db, "--restored"})
	}()
	<-stdout.question
	interrupt()
	if got := <-code; got != exitFailure || !strings.Contains(stderr.String(), "nothing changed: interrupted") {
		t.Errorf("code %d, %q", got, stderr.String())
	}
	if orders := pgtest.Ask[int](t, s, db, "SELECT count(*)::int FROM fencepost.orders"); orders != 0 {
		t.Errorf("%d orders were given", orders)
	}
}
