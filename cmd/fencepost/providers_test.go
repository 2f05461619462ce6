package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/raft"
	"github.com/fencepost/fencepost/fencing/fence"
	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/electors"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// testElector is a provider that only the tests have: it keeps its leases in Postgres, and
// counts what is asked of it. Its settings are never valid under the proxy id "invalid".
var testElector = electors.Elector{
	Provider: config.Provider{
		Name: "test",
		Validate: func(c *config.Config, fault config.Fault) {
			if c.Proxy.ID == "invalid" {
				fault("the elector test does not accept this")
			}
		},
	},
	Open: func(cfg config.Config, proxy string, log *zap.Logger) (electors.Service, error) {
		if proxy == "unopenable" {
			return nil, errors.New("the elector test cannot be opened")
		}
		embedded, err := electors.Postgres.Open(cfg, proxy, log)
		return &testService{Service: embedded}, err
	},
}

func init() { kinds = append(kinds, testElector) }

type testService struct {
	electors.Service
	databases, closed atomic.Int32
}

func (s *testService) Database(name string, fences *fence.Database) (elector.Provider, error) {
	s.databases.Add(1)
	return s.Service.Database(name, fences)
}

func (s *testService) Healthy() error { return errors.New("the test service is away") }

func (s *testService) BumpGeneration(context.Context, string, *fence.Database) (string, error) {
	return "test: started a new generation", nil
}

func (s *testService) Close() error {
	s.closed.Add(1)
	return nil
}

// TestAProviderIsOneRow: the program does with a provider that it does not know all that
// it does with its own.
func TestAProviderIsOneRow(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	var service *testService
	r := servicetest.StartWith(t, s, servicetest.Options{
		Kinds:  kinds,
		Change: func(c *config.Config) { c.Election.Provider = "test" },
		Open: func(cfg config.Config, proxy string, log *zap.Logger) (electors.Service, error) {
			opened, err := kinds.Serve(cfg, proxy, log)
			service = opened.(*testService)
			return opened, err
		},
	})
	conn := r.Connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait")
	if err := servicetest.Exec(t, conn, "CREATE TABLE work (n int)"); err != nil {
		t.Errorf("the leader's write: %v", err)
	}
	servicetest.Eventually(t, "/readyz to show what the service says", func() bool {
		code, body := r.Ask(t, "/readyz")
		return code == http.StatusOK && strings.Contains(body, "the test service is away")
	})
	if err := r.Stop(); err != nil {
		t.Errorf("end the proxy: %v", err)
	}
	if service.databases.Load() != 1 || service.closed.Load() != 1 {
		t.Errorf("opened for %d databases, closed %d times", service.databases.Load(), service.closed.Load())
	}

	env := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "test"}
	if out := runCommand(t, env, "generation", "bump"); out.code != exitOK || out.stdout != "test: started a new generation\n" {
		t.Errorf("generation bump: code %d, %s%s", out.code, out.stdout, out.stderr)
	}
	env["FENCEPOST_PROXY_ID"] = "invalid"
	if out := runCommand(t, env, "serve"); out.code != exitConfig || !strings.Contains(out.stderr, "the elector test does not accept this") {
		t.Errorf("serve with its settings invalid: code %d, %s", out.code, out.stderr)
	}
	env["FENCEPOST_PROXY_ID"], env["FENCEPOST_LISTEN"], env["FENCEPOST_ADMIN"] = "unopenable", "127.0.0.1:0", "127.0.0.1:0"
	if out := runCommand(t, env, "serve"); out.code != exitFailure || !strings.Contains(out.stderr, "the elector test cannot be opened") {
		t.Errorf("serve with a provider that cannot be opened: code %d, %s", out.code, out.stderr)
	}
}

// TestAProxyIsTheOnlyNode bootstraps a node, serves with it, and uses the commands that ask it.
func TestAProxyIsTheOnlyNode(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	db := s.Database(t)
	authority := pgtest.NewAuthority(t)
	pair := authority.Issue(t, pgtest.Subject{Name: "node", Hosts: []string{"127.0.0.1"}})
	address, dir := ports.For(t).Address(), filepath.Join(t.TempDir(), "raft")
	env := map[string]string{
		"FENCEPOST_ELECTION_PROVIDER": "raft", "FENCEPOST_ELECTION_RAFT_PEERS": "a=" + address, "FENCEPOST_PROXY_ID": "a",
		"FENCEPOST_ELECTION_RAFT_CA_FILE": authority.File, "FENCEPOST_ELECTION_RAFT_CERT_FILE": pair.CertFile, "FENCEPOST_ELECTION_RAFT_KEY_FILE": pair.KeyFile,
		"FENCEPOST_UPSTREAM_ADDRESS": s.Addr(), "FENCEPOST_CONTROL_USER": pgtest.Control,
	}
	node := maps.Clone(env)
	node["FENCEPOST_ELECTION_RAFT_DIR"] = dir
	must := func(env map[string]string, code int, args ...string) output {
		t.Helper()
		out := runCommand(t, env, args...)
		if out.code != code {
			t.Fatalf("%v: code %d\n%s%s", args, out.code, out.stdout, out.stderr)
		}
		return out
	}
	if out := must(env, exitFailure, "raft", "status"); !strings.Contains(out.stderr, "refused") {
		t.Errorf("without a node the status is %s%s", out.stdout, out.stderr)
	}
	if out := must(env, exitUsage, "raft", "bootstrap"); !strings.Contains(out.stderr, "election.raft.dir is empty") {
		t.Errorf("without a directory, bootstrap says %s", out.stderr)
	}
	must(node, exitOK, "raft", "bootstrap")
	must(node, exitFailure, "raft", "bootstrap")
	r := servicetest.Start(t, s, func(c *config.Config) {
		c.Proxy.ID, c.Election.Provider = "a", "raft"
		c.Election.Raft = config.Raft{
			Peers: config.Peers{{Name: "a", Address: address}}, Dir: dir,
			TLSClient: files.TLSClient{CAFile: authority.File, CertFile: pair.CertFile, KeyFile: pair.KeyFile},
		}
	})
	leads := func(worker, epoch string) {
		t.Helper()
		conn := r.Connect(t, db, "fencepost.resource=billing&fencepost.campaign=wait&fencepost.worker="+worker)
		wantEpoch(t, conn.PgConn().ParameterStatus("fencepost.epoch"), epoch)
		if err := conn.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	leads("a", "1")
	if out := must(env, exitOK, "generation", "bump"); !strings.Contains(out.stdout, "raft: started a new generation under fencepost/, ") {
		t.Errorf("generation bump says %s", out.stdout)
	}
	leads("b", "2")
	if n := generation(t, s, db); n != 2 {
		t.Errorf("the award is of generation %d, want 2", n)
	}
	if out := must(env, exitOK, "raft", "status"); !strings.Contains(out.stdout, "leader  Leader") {
		t.Errorf("the status is\n%s", out.stdout)
	}
	var nodes []raftNode
	if out := must(env, exitOK, "raft", "status", "--json"); json.Unmarshal([]byte(out.stdout), &nodes) != nil || len(nodes) != 1 || nodes[0].Member != "leader" {
		t.Errorf("the status is\n%s", out.stdout)
	}
	if out := must(env, exitFailure, "raft", "remove", "a"); !strings.Contains(out.stderr, "the only voter") {
		t.Errorf("remove says %s", out.stderr)
	}
	if out := must(env, exitFailure, "doctor", "--database", db); !strings.Contains(out.stdout, "Raft has 1 of the three nodes") {
		t.Errorf("the doctor says\n%s", out.stdout)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	out := runCommand(t, env, "generation", "bump")
	if out.code != exitFailure || !strings.Contains(out.stderr, "raft at "+address) || !strings.Contains(out.stderr, "election.raft.peers is right") {
		t.Errorf("without the node: code %d\n%s%s", out.code, out.stdout, out.stderr)
	}
}

// What raft status says of a node beside the table, which makes it exit with 1.
func TestRaftStatusSaysWhatIsWrongWithANode(t *testing.T) {
	t.Parallel()
	member := []raft.Member{{Name: "a", Disk: "1", Voter: true}}
	for what, c := range map[string]struct {
		members []raft.Member
		node    raft.NodeAnswer
		want    string
	}{
		"all is well":                   {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "1"}}, ""},
		"it does not answer":            {member, raft.NodeAnswer{Name: "a", Err: errors.New("refused")}, "node a: it does not answer: refused"},
		"its disk is full":              {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "1", Problem: "no space left on device"}}, "cannot write its directory: no space left on device"},
		"it has stopped":                {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "1", Stopped: true, State: "Shutdown (upgrade)"}}, "takes no part: Shutdown (upgrade)"},
		"it goes on with deleted files": {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "0"}}, "another directory than the one that was added. Restart its proxy"},
		"it is of another cluster":      {nil, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "1"}}, "it runs and is no member"},
		"it knows of no leader":         {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Disk: "1", State: "Candidate"}}, "it knows of no leader"},
		"it lags":                       {member, raft.NodeAnswer{Name: "a", Lag: 7, Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "1"}}, "it lags: it has not applied 7 of the entries"},
		"its address is another's":      {member, raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "b", Disk: "2"}}, "the node b answers at its address"},
		"the peers do not name it":      {append(member, raft.Member{Name: "b"}), raft.NodeAnswer{Name: "a", Status: raft.NodeStatus{Name: "a", Leader: "a", Disk: "1"}}, "node b: election.raft.peers does not name it"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			err := showRaft(io.Discard, raft.Status{Members: c.members, Nodes: []raft.NodeAnswer{c.node}}, false)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("it ends with %v, want %q", err, c.want)
			}
		})
	}
}
