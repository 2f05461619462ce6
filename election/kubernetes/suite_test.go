//go:build kubernetes

package kubernetes

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/kubernetestest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) { pgtest.Main(m, kubernetestest.StopShared) }

// ttl is the TTL of the leases in the suite.
var ttl = stopwatch.TTL(4 * time.Second)

const allLeases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"

// admin is an operator, who does what kubectl does.
type admin struct {
	t      *testing.T
	server *kubernetestest.Server
	prefix string
}

// patch changes an object by a JSON merge patch.
func (a admin) patch(name, patch string) {
	a.t.Helper()
	a.server.Request(a.t, http.MethodPatch, allLeases+"/"+name, "application/merge-patch+json", patch)
}

func (a admin) delete(name string) {
	a.t.Helper()
	a.server.Request(a.t, http.MethodDelete, allLeases+"/"+name, "application/json", "")
}

// names returns the names of all leases, without that of the marker.
func (a admin) names() (names []string) {
	a.t.Helper()
	var all list
	text := a.server.Request(a.t, http.MethodGet, allLeases+"?labelSelector="+url.QueryEscape(labelPrefix+"="+a.prefix), "application/json", "")
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		a.t.Fatalf("decode %s: %v", text, err)
	}
	for _, o := range all.Items {
		if !strings.HasSuffix(o.Metadata.Name, ".generation") {
			names = append(names, o.Metadata.Name)
		}
	}
	return names
}

func client(t *testing.T, cfg Config) *kv.Client {
	t.Helper()
	cfg.Logger = zaptest.NewLogger(t).Named(cfg.Proxy)
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// conformed is a server with a prefix that is unique to the test.
func conformed(t *testing.T, server *kubernetestest.Server, db string) *electiontest.Service {
	as := admin{t, server, strings.ReplaceAll(db, "_", "-")}
	name := func(resource string) string { return (&service{prefix: as.prefix}).nameOf(db + "/" + resource) }
	patched := func(patch string) func(*testing.T, string) {
		return func(_ *testing.T, resource string) { as.patch(name(resource), patch) }
	}
	return &electiontest.Service{
		TTL: ttl, Death: ttl + 2*time.Second, Addr: server.Addr(), Multiplexed: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return client(t, Config{Kubeconfig: server.Kubeconfig(t, link.Addr(), kubernetestest.Admin), Prefix: as.prefix, Proxy: proxy}).Database(db)
		},
		Bump: func(*testing.T) {
			as.patch(as.prefix+".generation", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, noteMarker, rand.Text()))
		},
		Wipe: func(*testing.T) {
			as.server.Request(t, http.MethodDelete, allLeases+"?labelSelector="+url.QueryEscape(labelPrefix+"="+as.prefix), "application/json", "")
		},
		Backup: func(t *testing.T) func(t *testing.T) {
			backup := server.Backup(t)
			return func(t *testing.T) { // as the documentation of Kubernetes says
				server.Kill()
				server.RestoreStopped(t, backup)
				server.Restart(t)
			}
		},
		Faults: []electiontest.Fault{
			{Name: "the holder is removed", Do: patched(`{"spec":{"holderIdentity":null}}`)},
			{Name: "somebody else is written as the holder", Do: patched(`{"spec":{"holderIdentity":"kubectl"}}`)},
			{Name: "the record is overwritten", Do: patched(`{"metadata":{"annotations":{"` + noteRecord + `":"mine"}}}`)},
			{Name: "all annotations are removed", Do: patched(`{"metadata":{"annotations":null}}`)},
			{Name: "another program adds an annotation", Do: patched(`{"metadata":{"annotations":{"example.com/note":"mine"}}}`)},
			{Name: "the label is removed", Do: patched(`{"metadata":{"labels":null}}`)},
			{Name: "the object is deleted", Do: func(_ *testing.T, resource string) { as.delete(name(resource)) }},
			{Name: "all leases are deleted", Do: func(*testing.T, string) {
				for _, one := range as.names() {
					as.delete(one)
				}
			}},
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.Run(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return conformed(t, kubernetestest.Shared(t), db)
	})
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return conformed(t, kubernetestest.Start(t), db)
	})
}

// front is a plain HTTP server in front of the API server, as kubectl proxy is, so that a link can
// read the requests. change, if not nil, may answer a request itself.
func front(t *testing.T, server *kubernetestest.Server, change func(w http.ResponseWriter, r *http.Request) bool) string {
	t.Helper()
	transport := server.Transport()
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "https", Host: server.Addr()})
		r.Out.Header.Set("Authorization", "Bearer "+kubernetestest.Admin)
	}}
	f := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if change == nil || !change(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
		transport.CloseIdleConnections()
	})
	return strings.TrimPrefix(f.URL, "http://")
}

// plainConfig writes a kubeconfig without credentials, for a front.
func plainConfig(t *testing.T, addr string) string {
	t.Helper()
	f := &fake{t: t}
	path := t.TempDir() + "/kubeconfig"
	f.file(path, fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: a}}]\nclusters: [{name: a, cluster: {server: 'http://%s'}}]\n", addr))
	return path
}

// What must be seen on the wire is tested without TLS.
func TestConformanceOnTheWire(t *testing.T) {
	t.Parallel()
	electiontest.RunCases(t, []string{
		"an acquire that arrives after its lease was given back takes nothing",
		"an acquire that arrives after its worker has gone takes nothing",
	}, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		s := conformed(t, kubernetestest.Shared(t), db)
		s.Addr = front(t, kubernetestest.Shared(t), nil)
		s.Provider = func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return client(t, Config{Kubeconfig: plainConfig(t, link.Addr()), Prefix: strings.ReplaceAll(db, "_", "-"), Proxy: proxy}).Database(db)
		}
		s.Request = func(worker string) string {
			return fmt.Sprintf(`%q:%q,%q:"{\"state\":\"held\",\"worker\":\"%s\"`, noteLast, wroteAward, noteRecord, worker)
		}
		return s
	})
}
