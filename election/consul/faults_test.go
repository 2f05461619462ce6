package consul_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/consul"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/consultest"
)

// What these tests share with those of other providers.
var (
	within     = electiontest.Within
	eventually = electiontest.Eventually
	bid        = electiontest.Bid
	renew      = electiontest.Renew
)

const patience = electiontest.Patience

// A session that is renewed while no read confirms the lock would serve no one: its holder
// may not lead, and no one else could take over.
func TestALeaseThatCannotBeConfirmedEnds(t *testing.T) {
	t.Parallel()
	agent := consultest.Shared(t)
	prefix := rand.Text()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: agent.Addr()})
	var slow atomic.Bool
	path := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() && strings.HasPrefix(r.URL.Path, "/v1/kv/") {
			<-r.Context().Done() // until the client gives up
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(path.Close)
	p := electiontest.Reached(t, client(t, consul.Config{Address: strings.TrimPrefix(path.URL, "http://"), Prefix: prefix, Proxy: prefix + "one"}).Database("db"))
	q := electiontest.Reached(t, client(t, consul.Config{Address: agent.Addr(), Prefix: prefix, Proxy: prefix + "two"}).Database("db"))
	lease, err := p.Acquire(within(t, patience), bid("a", ttl))
	if err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	eventually(t, "somebody else gets the lease", patience, func() bool {
		if err := p.Renew(within(t, ttl/3), lease); err == nil {
			t.Fatal("a lease is renewed that was not confirmed")
		}
		_, err := q.Acquire(within(t, patience), bid("b", ttl))
		return err == nil
	})
	slow.Store(false)
	if err := p.Renew(within(t, patience), lease); !errors.Is(err, elector.ErrLost) {
		t.Errorf("the former holder renews with %v", err)
	}
}

// An agent that is frozen confirms nothing, and loses nothing. Agents of the tests keep no data.
func TestAFrozenAgentIsUnknownNotLost(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	electiontest.Outage{
		Client: client(t, consul.Config{Address: agent.Addr(), Proxy: "one"}), TTL: time.Minute,
		Pause: func() { agent.Pause(t) }, Continue: func() { agent.Continue(t) },
	}.Run(t)
}

func TestMissingRightsAreUnknownNotLost(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.WithACL())
	const long = 60 * time.Second
	full := token(t, agent, `key_prefix "fencepost/" { policy = "write" } session_prefix "" { policy = "write" }`)
	p := electiontest.Reached(t, client(t, consul.Config{Address: agent.Addr(), Proxy: "one", Token: full}).Database("db"))
	lease, err := p.Acquire(within(t, patience), bid("a", long))
	if err != nil {
		t.Fatalf("acquire with all rights: %v", err)
	}
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Fatalf("renew with all rights: %v", err)
	}
	var nodes []struct{ Node string }
	if err := json.Unmarshal(agent.Request(t, http.MethodGet, "/v1/catalog/nodes", nil), &nodes); err != nil || len(nodes) != 1 {
		t.Fatalf("the nodes are %v: %v", nodes, err)
	}
	least := token(t, agent, fmt.Sprintf(`key_prefix "fencepost/" { policy = "write" } session %q { policy = "write" }`, nodes[0].Node))
	for _, token := range []string{full, least} {
		at, err := client(t, consul.Config{Address: agent.Addr(), Proxy: "doctor", Token: token}).Position(within(t, patience), []time.Duration{long})
		if err != nil || at.Source != consul.Source || at.InstanceID != lease.InstanceID || at.Index < lease.Index || at.Index > lease.Index+1000 {
			t.Errorf("the position is %+v (%v) after the award %+v", at, err, lease)
		}
	}
	for name, rules := range map[string]string{
		"no rights":                 ``,
		"no right to the session":   `key_prefix "fencepost/" { policy = "write" }`,
		"no right to the key":       `session_prefix "" { policy = "write" }`,
		"no right to read the mark": `key_prefix "fencepost/db/" { policy = "write" } session_prefix "" { policy = "write" }`,
	} {
		q := client(t, consul.Config{Address: agent.Addr(), Proxy: "two", Token: token(t, agent, rules)}).Database("db")
		if err := q.Renew(within(t, patience), lease); errors.Is(err, elector.ErrLost) {
			t.Errorf("%s: renew says that the lease is lost: %v", name, err)
		}
		other := bid(name, long)
		other.Resource = "other"
		if got, err := q.Acquire(within(t, patience), other); err == nil || errors.Is(err, elector.ErrHeld) {
			t.Errorf("%s: acquire ended with %v, %v", name, got, err)
		}
		if err := q.Release(within(t, patience), &elector.Lease{AcquireRequest: other}, elector.ReasonLeft, 0); err != nil {
			t.Logf("%s: release: %v", name, err)
		}
	}
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder was disturbed: %v", err)
	}
	deleted := token(t, agent, `key_prefix "fencepost/" { policy = "write" } session_prefix "" { policy = "write" }`)
	q := client(t, consul.Config{Address: agent.Addr(), Proxy: "deleted", Token: deleted}).Database("db")
	if _, err := q.Acquire(within(t, patience), bid("b", long)); !errors.Is(err, elector.ErrHeld) {
		t.Fatalf("acquire with a token that is there: %v", err)
	}
	var self struct{ AccessorID string }
	if err := json.Unmarshal(agent.Request(t, http.MethodGet, "/v1/acl/token/self?token="+deleted, nil), &self); err != nil {
		t.Fatal(err)
	}
	agent.Request(t, http.MethodDelete, "/v1/acl/token/"+self.AccessorID, nil)
	eventually(t, "the agent forgets the token, and the answer says what to do", patience, func() bool {
		_, err := q.Acquire(within(t, patience), bid("b", long))
		var denied *elector.DeniedError
		return errors.As(err, &denied)
	})
	q = client(t, consul.Config{Address: agent.Addr(), Proxy: "three", Token: full}).Database("db")
	free := bid("z", long)
	free.Resource = "other"
	if _, err := q.Acquire(within(t, patience), free); err != nil {
		t.Errorf("a lease that nobody could get is not free: %v", err)
	}
}

// token creates an ACL token with the rules.
func token(t *testing.T, agent *consultest.Agent, rules string) string {
	t.Helper()
	policy := fmt.Sprintf(`{"Name": "p%d", "Rules": %s}`, time.Now().UnixNano(), quoted(t, rules))
	var made struct{ ID, SecretID string }
	if err := json.Unmarshal(agent.Request(t, http.MethodPut, "/v1/acl/policy", []byte(policy)), &made); err != nil {
		t.Fatal(err)
	}
	body := `{"Policies": [{"ID": "` + made.ID + `"}]}`
	if err := json.Unmarshal(agent.Request(t, http.MethodPut, "/v1/acl/token", []byte(body)), &made); err != nil {
		t.Fatal(err)
	}
	return made.SecretID
}

func quoted(t *testing.T, s string) string {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The only test with Consul's own minimum TTL: the lease of a dead proxy is free no
// earlier than after the TTL, and no later than after twice the TTL plus the lock
// delay.
func TestDeadHolderWithTheDefaultTTL(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	agent := consultest.Start(t, consultest.WithDefaultTTL())
	p := client(t, consul.Config{Address: agent.Addr(), Proxy: "one"}).Database("db")
	q := client(t, consul.Config{Address: agent.Addr(), Proxy: "two"}).Database("db")
	if _, err := p.Acquire(within(t, patience), bid("short", time.Second)); err == nil {
		t.Error("Consul accepted a TTL of 1s, so the agent is not suitable for this test")
	}
	began := time.Now()
	first, err := p.Acquire(within(t, patience), bid("a", ttl))
	if err != nil {
		t.Fatal(err)
	}
	var second *elector.Lease
	eventually(t, "the lease is free", 2*ttl+lockDelay+5*time.Second, func() bool {
		second, err = q.Acquire(within(t, patience), bid("b", ttl))
		return err == nil
	})
	if took := time.Since(began); took < ttl {
		t.Errorf("the lease was free after %v", took)
	}
	if second.Index <= first.Index {
		t.Errorf("award %d came after %d", second.Index, first.Index)
	}
	if err := p.Renew(within(t, patience), first); !errors.Is(err, elector.ErrLost) {
		t.Errorf("the dead holder renews with %v", err)
	}
}

// During the lock delay the lease is held by no one and cannot be acquired. Attempts leave no
// sessions.
func TestTheLockDelayIsWaitedFor(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	const delay = 2 * time.Second
	c, err := consul.New(consul.Config{Address: agent.Addr(), Proxy: "one", LockDelay: delay})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := electiontest.Reached(t, c.Database("db"))
	lease, err := p.Acquire(within(t, patience), bid("a", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	agent.Request(t, http.MethodPut, "/v1/session/destroy/"+lease.Handle, nil)
	eventually(t, "the lock delay is over", patience, func() bool {
		_, err := p.Acquire(within(t, patience), bid("b", time.Minute))
		if err != nil && !errors.Is(err, elector.ErrHeld) {
			t.Fatalf("during the lock delay, a worker gets %v", err)
		}
		return err == nil
	})
	if took := time.Since(began); took < delay {
		t.Errorf("the lease was acquired after %v, the lock delay is %v", took, delay)
	}
	eventually(t, "only the session of the lease remains", patience, func() bool {
		var sessions []struct{ ID string }
		if err := json.Unmarshal(agent.Request(t, http.MethodGet, "/v1/session/list?consistent", nil), &sessions); err != nil {
			t.Fatal(err)
		}
		return len(sessions) == 1
	})
}
