// Package consultest runs a real Consul for tests.
//
// An agent keeps all of its state in memory, writes no file that outlives the test
// process, and dies with it. The servers of a cluster keep theirs in a directory of the test.
package consultest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/servertest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

// ManagementToken is the token with all privileges of an agent started WithACL.
const ManagementToken = "5ebc0f5c-6f5f-4a3c-8f0d-3d0f3b0e7a11"

// patience bounds the start of an agent and each request of this package.
const patience = 60 * time.Second

// Agent is a Consul server in a cluster of its own.
type Agent struct {
	servertest.Process
	ports   [3]*ports.Port // HTTP, Raft, gossip
	options options
}

// Option changes how an agent is started.
type Option func(*options)

type options struct {
	acl         bool
	ttlMin      string
	connections int // from each client address; 0: Consul's own limit
}

// WithACL denies everything that a token does not allow; see ManagementToken.
func WithACL() Option { return func(o *options) { o.acl = true } }

// WithDefaultTTL keeps Consul's own minimum TTL of a session, 10 s, instead of the 1 s
// that keeps tests short.
func WithDefaultTTL() Option { return func(o *options) { o.ttlMin = "" } }

// WithConnections limits the connections from each client address (http_max_conns_per_client).
func WithConnections(most int) Option { return func(o *options) { o.connections = most } }

var shared servertest.Shared[*Agent]

// Shared returns the agent that all tests of this process share. Tests must not change
// it and must use keys of their own. It ends with the process.
func Shared(t testing.TB) *Agent {
	t.Helper()
	return shared.Get(t, func() (*Agent, error) { return start() })
}

// Start returns an agent for one test, which may stop, pause or restore it. It ends
// with the test.
func Start(t testing.TB, opts ...Option) *Agent {
	t.Helper()
	stopwatch.AwaitRoom(t)
	a, err := start(opts...)
	if err != nil {
		t.Fatalf("start Consul: %v", err)
	}
	t.Cleanup(a.Stop)
	return a
}

// Addr returns host:port of the agent's HTTP interface.
func (a *Agent) Addr() string { return a.ports[0].Address() }

// Settings are the environment variables with which Fencepost keeps its leases there, under a prefix.
func (a *Agent) Settings(prefix string) []string {
	return []string{"FENCEPOST_ELECTION_PROVIDER=consul", "FENCEPOST_ELECTION_CONSUL_ADDRESS=" + a.Addr(), "FENCEPOST_ELECTION_CONSUL_PREFIX=" + prefix}
}

// Stop ends the agent and discards its state. Stopping twice is harmless.
func (a *Agent) Stop() {
	if a.Log == nil {
		return
	}
	a.Kill()
	_ = a.Log.Close()
	a.Log = nil
	for _, p := range a.ports {
		p.Release()
	}
}

// Snapshot returns the agent's state.
func (a *Agent) Snapshot(t testing.TB) []byte {
	t.Helper()
	return a.Request(t, http.MethodGet, "/v1/snapshot", nil)
}

// Restore replaces the agent's state. Consul sometimes does not finish that, and answers nothing any
// more: then the snapshot is restored into a new process.
func (a *Agent) Restore(t testing.TB, snapshot []byte) {
	t.Helper()
	if _, err := a.request(http.MethodPut, "/v1/snapshot", snapshot, patience/3); err == nil {
		return
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	t.Logf("Consul did not finish a restore; its log ends with:\n%s", a.Tail())
	a.Kill()
	if err := a.run(); err != nil {
		t.Fatalf("restart Consul: %v", err)
	}
	a.Request(t, http.MethodPut, "/v1/snapshot", snapshot)
}

// Request sends a request with all privileges and returns the body of the response. It
// fails the test unless the status is 200.
func (a *Agent) Request(t testing.TB, method, path string, body []byte) []byte {
	t.Helper()
	answer, err := a.request(method, path, body, patience)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func (a *Agent) request(method, path string, body []byte, within time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+a.Addr()+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if a.options.acl {
		req.Header.Set("X-Consul-Token", ManagementToken)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer, err
}

// start retries, because gossip also needs the UDP port of its number, which someone
// may have.
func start(opts ...Option) (*Agent, error) {
	var err error
	for range 3 {
		var a *Agent
		if a, err = startOnce(opts...); err == nil {
			return a, nil
		}
	}
	return nil, err
}

func startOnce(opts ...Option) (*Agent, error) {
	o := options{ttlMin: "1s"}
	for _, opt := range opts {
		opt(&o)
	}
	a, err := plan(o)
	if err != nil {
		return nil, err
	}
	a.configure("-dev")
	if err := a.run(); err != nil {
		a.Stop()
		return nil, err
	}
	return a, nil
}

// plan returns an agent with its ports and its log.
func plan(o options) (*Agent, error) {
	var err error
	a := &Agent{options: o, Process: servertest.Process{Name: "Consul", Program: "consul", Variable: "FENCEPOST_TEST_CONSUL"}}
	for i := range a.ports {
		if a.ports[i], err = ports.Reserve(); err != nil {
			return nil, err
		}
	}
	if a.Log, err = os.CreateTemp("", "consul-log-"); err != nil {
		return nil, err
	}
	if err := os.Remove(a.Log.Name()); err != nil { // it exists as long as it is open
		return nil, err
	}
	return a, nil
}

// configure sets how the agent is started, with these flags in addition to the configuration.
func (a *Agent) configure(flags ...string) {
	a.Args = append([]string{"agent", "-hcl", a.config()}, flags...)
}

// run starts the agent's process, without any state, and returns when it accepts writes.
func (a *Agent) run() error {
	if err := a.Launch(); err != nil {
		return err
	}
	return a.await()
}

func (a *Agent) config() string {
	o := a.options
	lines := []string{
		`bind_addr = "127.0.0.1"`, `client_addr = "127.0.0.1"`, `log_level = "warn"`,
		`disable_update_check = true`, `connect { enabled = false }`, `performance { raft_multiplier = 1 }`,
		fmt.Sprintf(`ports { http = %d  server = %d  serf_lan = %d  serf_wan = -1  dns = -1  grpc = -1  grpc_tls = -1 }`, a.ports[0].Number, a.ports[1].Number, a.ports[2].Number),
	}
	if o.ttlMin != "" {
		lines = append(lines, fmt.Sprintf("session_ttl_min = %q", o.ttlMin))
	}
	if o.connections != 0 {
		lines = append(lines, fmt.Sprintf("limits { http_max_conns_per_client = %d }", o.connections))
	}
	if o.acl {
		lines = append(lines, fmt.Sprintf(`acl { enabled = true  default_policy = "deny"  tokens { initial_management = %q  agent = %q } }`,
			ManagementToken, ManagementToken))
	}
	return strings.Join(lines, "\n")
}

// await returns when the agent accepts writes.
func (a *Agent) await() error {
	return a.Await(patience, func() error {
		_, err := a.request(http.MethodPut, "/v1/kv/consultest", []byte("ready"), patience)
		return err
	})
}
