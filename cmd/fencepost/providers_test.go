package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/cmd/fencepost/electors"
	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/fencing/store"
	"github.com/fencepost/fencepost/internal/pgtest"
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

func (s *testService) Database(name string, st *store.Store) (election.Provider, error) {
	s.databases.Add(1)
	return s.Service.Database(name, st)
}

func (s *testService) Healthy() error { return errors.New("the test service is away") }

func (s *testService) BumpGeneration(context.Context, string, *store.Store) (string, error) {
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
	r := startServing(t, s, func(c *config.Config) { c.Election.Provider = "test" })
	conn := r.connect(t, db, "fencepost.resource=billing&fencepost.worker=a&fencepost.campaign=wait")
	if err := execSQL(t, conn, "CREATE TABLE work (n int)"); err != nil {
		t.Errorf("the leader's write: %v", err)
	}
	if code, body := r.ask(t, "/readyz"); code != http.StatusOK || !strings.Contains(body, "the test service is away") {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if err := r.stop(); err != nil {
		t.Errorf("end the proxy: %v", err)
	}
	if service := r.leases.(*testService); service.databases.Load() != 1 || service.closed.Load() != 1 {
		t.Errorf("opened for %d databases, closed %d times", service.databases.Load(), service.closed.Load())
	}

	env := map[string]string{"FENCEPOST_ELECTION_PROVIDER": "test"}
	if out := runCommand(t, env, "generation", "bump"); out.code != exitOK || out.stdout != "test: started a new generation\n" {
		t.Errorf("generation bump: code %d, %s%s", out.code, out.stdout, out.stderr)
	}
	env["FENCEPOST_PROXY_ID"] = "invalid"
	if out := runCommand(t, env, "serve"); out.code != exitUsage || !strings.Contains(out.stderr, "the elector test does not accept this") {
		t.Errorf("serve with its settings invalid: code %d, %s", out.code, out.stderr)
	}
	env["FENCEPOST_PROXY_ID"], env["FENCEPOST_LISTEN"], env["FENCEPOST_ADMIN"] = "unopenable", "127.0.0.1:0", "127.0.0.1:0"
	if out := runCommand(t, env, "serve"); out.code != exitFailure || !strings.Contains(out.stderr, "the elector test cannot be opened") {
		t.Errorf("serve with a provider that cannot be opened: code %d, %s", out.code, out.stderr)
	}
}
