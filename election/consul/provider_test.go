package consul_test

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/consul"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) {
	process.RaiseParallel()
	pgtest.Main(m)
}

// ttl is the TTL of the leases in these tests. Consul waits up to twice as long before it
// ends a session.
var ttl = stopwatch.TTL(3 * time.Second)

const lockDelay = 100 * time.Millisecond

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.Run(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, consultest.Shared(t), db)
	})
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, consultest.Start(t), db)
	})
}

// service is an agent with a prefix that is unique to the test.
func service(t *testing.T, agent *consultest.Agent, db string) *electiontest.Service {
	key := "/v1/kv/" + db + "/" + db + "/"
	return &electiontest.Service{
		TTL: ttl, Death: 2*ttl + lockDelay + time.Second, Addr: agent.Addr(), Adopts: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return client(t, consul.Config{Address: link.Addr(), Prefix: db, Proxy: db + proxy}).Database(db)
		},
		// A release is a transaction too, but it unlocks.
		Request: func(string) string { return `"Verb":"lock"` },
		Bump: func(t *testing.T) {
			agent.Request(t, http.MethodPut, "/v1/kv/"+db+"/.generation", []byte(rand.Text()))
		},
		Wipe: func(t *testing.T) { agent.Request(t, http.MethodDelete, "/v1/kv/"+db+"/?recurse", nil) },
		Backup: func(t *testing.T) func(t *testing.T) {
			snapshot := agent.Snapshot(t)
			return func(t *testing.T) { agent.Restore(t, snapshot) }
		},
		Faults: []electiontest.Fault{
			{Name: "the session is destroyed", Do: func(t *testing.T, resource string) {
				if session := holder(t, agent, key+resource); session != "" {
					agent.Request(t, http.MethodPut, "/v1/session/destroy/"+session, nil)
				}
			}},
			{Name: "the key is deleted", Do: func(t *testing.T, resource string) {
				agent.Request(t, http.MethodDelete, key+resource, nil)
			}},
			{Name: "the key is overwritten by a plain PUT", Do: func(t *testing.T, resource string) {
				agent.Request(t, http.MethodPut, key+resource, []byte("mine"))
			}},
			{Name: "the lock is released by hand", Do: func(t *testing.T, resource string) {
				agent.Request(t, http.MethodPut, key+resource+"?release="+holder(t, agent, key+resource), nil)
			}},
		},
	}
}

// holder returns the session that has locked a key.
func holder(t *testing.T, agent *consultest.Agent, path string) string {
	t.Helper()
	var pairs []struct{ Session string }
	if err := json.Unmarshal(agent.Request(t, http.MethodGet, path+"?consistent", nil), &pairs); err != nil {
		t.Fatal(err)
	}
	return pairs[0].Session
}

func client(t *testing.T, cfg consul.Config) *kv.Client {
	t.Helper()
	cfg.LockDelay = lockDelay
	cfg.Logger = zaptest.NewLogger(t).Named(strings.TrimPrefix(cfg.Proxy, cfg.Prefix))
	c, err := consul.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
