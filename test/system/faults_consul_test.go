package system

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/internal/fixture/process"
)

// The rules of an ACL token.
const (
	tokenKey     = `key_prefix "" { policy = "write" }`
	tokenSession = ` session_prefix "" { policy = "write" }`
)

// aclToken is an ACL token whose rules can change.
type aclToken struct {
	t              *testing.T
	agent          *consultest.Agent
	policy, secret string
}

// newToken returns a token without rights.
func newToken(t *testing.T, agent *consultest.Agent) *aclToken {
	t.Helper()
	token := &aclToken{t: t, agent: agent}
	token.policy = token.put("/v1/acl/policy", map[string]any{"Name": "p", "Rules": ""}).ID
	token.secret = token.put("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"ID": token.policy}}}).SecretID
	return token
}

// allow replaces the rules.
func (a *aclToken) allow(rules string) {
	a.t.Helper()
	a.put("/v1/acl/policy/"+a.policy, map[string]any{"ID": a.policy, "Name": "p", "Rules": rules})
}

func (a *aclToken) put(path string, body map[string]any) (made struct{ ID, SecretID string }) {
	a.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := json.Unmarshal(a.agent.Request(a.t, http.MethodPut, path, text), &made); err != nil {
		a.t.Fatal(err)
	}
	return made
}

// TestFaultOfTheConsulToken plays a token without rights, which then gets them, and loses
// a part of them.
func TestFaultOfTheConsulToken(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.WithACL())
	token := newToken(t, agent)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=6s", "STARTUP_WAIT=10s", "ELECTION_CONSUL_TOKEN="+token.secret))
	p := h.proxy()
	awaitFault(t, p, faults.LeaseDenied, "session_prefix")
	awaitOK(t, p, "/readyz") // whatever the lease service says
	token.allow(tokenKey)
	awaitFault(t, p, faults.LeaseDenied, "session_prefix")
	token.allow(tokenKey + tokenSession)
	awaitNoFault(t, p, faults.LeaseDenied)
	a := h.join(p, "a", "campaign", "wait")
	a.must("INSERT INTO work VALUES ('a')")
	token.allow(tokenKey)
	awaitFault(t, p, faults.LeaseDenied, "session_prefix")
	mustRefuse(t, "without session:write", awaitReason(t, a),
		`the lease of "`+resource+`" is not confirmed: the lease service refuses Fencepost \(403 `, "Waiting does not help. Check the ACL token")
	token.allow(tokenKey + tokenSession)
	awaitNoFault(t, p, faults.LeaseDenied)
}

// TestFaultOfConsulsLimit: others have all the connections that Consul allows for an address.
func TestFaultOfConsulsLimit(t *testing.T) {
	t.Parallel()
	const most = 8
	process.Program(t) // it may have to be built
	agent := consultest.Start(t, consultest.WithConnections(most))
	h := newCluster(t, "consul", withConsul(agent))
	var others []net.Conn
	for range most {
		conn, err := net.Dial("tcp", agent.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := conn.Write([]byte("GET /v1/kv/consultest?index=1000000000&wait=15s HTTP/1.1\r\nHost: consul\r\n\r\n")); err != nil { // it waits
			t.Fatal(err)
		}
		others = append(others, conn)
	}
	p := h.proxy()
	if f := awaitFault(t, p, faults.LeaseService, "http_max_conns_per_client"); !strings.Contains(f.Problem, "429") {
		t.Errorf("the fault is %+v", f)
	}
	for _, conn := range others {
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	awaitNoFault(t, p, faults.LeaseService)
}

// TestWaitingWorkersDoNotFloodTheLog: while Consul is away, its absence is said once, and not
// at each attempt of each worker that waits.
func TestWaitingWorkersDoNotFloodTheLog(t *testing.T) {
	t.Parallel()
	const waiting = 5
	agent := consultest.Start(t)
	h := newCluster(t, "consul", withConsul(agent), with("LEASE_TTL=2s", "LOG_LEVEL=info"))
	p := h.proxy()
	h.join(p, "leader", "campaign", "wait")
	ctx, cancel := context.WithCancel(t.Context())
	var waiters sync.WaitGroup
	t.Cleanup(func() { cancel(); waiters.Wait() })
	for n := range waiting {
		waiters.Go(func() {
			if c, err := pgx.Connect(ctx, h.dsn(p, fmt.Sprint("waiter-", n), "campaign", "wait")); err == nil {
				_ = c.Close(ctx)
			}
		})
	}
	process.Eventually(t, process.Patience, "the workers to wait", func() bool {
		_, resources := p.Get(t, "/v1/resources")
		return strings.Count(resources, `"worker": "waiter-`) == waiting
	})
	before := p.Log()
	agent.Stop()
	awaitFault(t, p, faults.LeaseService, "election")
	said := func() []string {
		lines := strings.Split(strings.TrimSpace(strings.TrimPrefix(p.Log(), before)), "\n")
		// The proxy also looks at the databases of other tests, which drop them meanwhile.
		return slices.DeleteFunc(lines, func(l string) bool {
			return strings.Contains(l, `"where":"database `) || strings.Contains(l, "of operators") || strings.Contains(l, "who campaigns")
		})
	}
	process.Always(t, 8*time.Second, "a line for what fails, and not for each worker and attempt", func() bool { return len(said()) <= waiting })
	if t.Failed() {
		t.Log(strings.Join(said(), "\n"))
	}
	if code, out := h.command("status", "--admin", p.Admin); code != 0 || !strings.Contains(out, "unknown") {
		t.Errorf("status does not say that the state is unknown: code %d: %s", code, out)
	}
}
