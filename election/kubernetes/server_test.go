//go:build kubernetes

package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/kubernetestest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m, kubernetestest.StopShared) }

// ttl is the TTL of the leases in the suite.
const ttl = 2 * time.Second

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

// service is a server with a prefix that is unique to the test.
func service(t *testing.T, server *kubernetestest.Server, db string) *electiontest.Service {
	as := admin{t, server, strings.ReplaceAll(db, "_", "-")}
	name := func(resource string) string { return (&store{prefix: as.prefix}).nameOf(db + "/" + resource) }
	patched := func(patch string) func(*testing.T, string) {
		return func(_ *testing.T, resource string) { as.patch(name(resource), patch) }
	}
	return &electiontest.Service{
		TTL: ttl, Death: ttl + 2*time.Second, Addr: server.Addr(), Multiplexed: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) election.Provider {
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
		return service(t, kubernetestest.Shared(t), db)
	})
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, kubernetestest.Start(t), db)
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
		s := service(t, kubernetestest.Shared(t), db)
		s.Addr = front(t, kubernetestest.Shared(t), nil)
		s.Provider = func(t *testing.T, proxy string, link *electiontest.Link) election.Provider {
			return client(t, Config{Kubeconfig: plainConfig(t, link.Addr()), Prefix: strings.ReplaceAll(db, "_", "-"), Proxy: proxy}).Database(db)
		}
		s.Request = func(worker string) string {
			return fmt.Sprintf(`%q:%q,%q:"{\"state\":\"held\",\"worker\":\"%s\"`, noteLast, wroteAward, noteRecord, worker)
		}
		return s
	})
}

// onServer opens a store on a real server, with a prefix of its own.
func onServer(t *testing.T, server *kubernetestest.Server) *store {
	t.Helper()
	s, err := open(Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Prefix: "t" + strings.ToLower(rand.Text()), Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSwapOnAServerWritesOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	swapWritesOnlyWhatItMay(t, onServer(t, kubernetestest.Shared(t)))
}

// What Fencepost rests on: a write that is older than the object is refused, also if the object
// was deleted, or deleted and made again; a write that changes nothing is none.
func TestWhatAServerRefuses(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	s, ctx := onServer(t, server), t.Context()
	as := admin{t, server, s.prefix}
	refused := func(what string, basis, o *lease) {
		t.Helper()
		if written, err := s.write(ctx, basis, o); !errors.Is(err, kv.ErrConflict) {
			t.Errorf("%s: %+v, %v", what, written, err)
		}
	}
	write := func(basis *lease, record string) *lease {
		t.Helper()
		o, err := s.write(ctx, basis, s.next(basis, key, change{what: wroteRecord, record: []byte(record)}))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := write(nil, "first")
	refused("a second new object", nil, s.next(nil, key, change{what: wroteRecord}))
	second := write(first, "second")
	refused("an older version", first, s.next(first, key, change{what: wroteRecord}))
	same, err := s.write(ctx, second, second)
	if err != nil || same.Metadata.ResourceVersion != second.Metadata.ResourceVersion {
		t.Errorf("a write without a change made version %s of %s: %v", same.Metadata.ResourceVersion, second.Metadata.ResourceVersion, err)
	}
	as.delete(s.nameOf(key))
	refused("an object that was deleted", second, s.next(second, key, change{what: wroteRecord}))
	if o, err := s.get(ctx, s.nameOf(key)); o != nil || err != nil {
		t.Errorf("it was made again: %+v, %v", o, err)
	}
	third := write(nil, "third")
	refused("an object that was deleted and made again", second, s.next(second, key, change{what: wroteRecord}))
	a, errA := second.version()
	b, errB := third.version()
	if errors.Join(errA, errB) != nil || b <= a {
		t.Errorf("version %d of a new object came after %d", b, a)
	}
}

const long = 60 * time.Second

// acquire waits for the lease.
func acquire(t *testing.T, p election.Provider, b election.AcquireRequest) (lease *election.Lease) {
	t.Helper()
	eventually(t, "the lease of "+b.Worker+" is awarded", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var err error
		lease, err = p.Acquire(ctx, b)
		return err == nil
	})
	return lease
}

// renew renews a lease until the outcome is known.
func renew(t *testing.T, p election.Provider, l *election.Lease) error {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := p.Renew(ctx, l)
		cancel()
		if err == nil || errors.Is(err, election.ErrLost) || time.Now().After(end) {
			return err
		}
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not hold that %s", what)
		}
	}
}

// A server that is killed or frozen ends no term.
func TestTheServerIsAwayWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Start(t)
	c := client(t, Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Proxy: "one"})
	p := c.Database("db")
	lease := acquire(t, p, bid("a"))
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Renew(ctx, lease); errors.Is(err, election.ErrLost) || err == nil || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("without the server, the holder renews with %v", err)
	}
	eventually(t, "the client knows", func() bool { return c.Healthy() != nil })
	server.Restart(t)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("after the restart the holder renews with %v", err)
	}
	eventually(t, "the client knows that it is there", func() bool { return c.Healthy() == nil })
	server.Pause(t)
	began := time.Now()
	short, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	if err := p.Renew(short, lease); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, election.ErrLost) {
		t.Errorf("while the server stands still the holder renews with %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a renewal that may take 1s took %v", took)
	}
	eventually(t, "the client knows that it stands still", func() bool { return c.Healthy() != nil })
	server.Continue(t)
	if err := renew(t, p, lease); err != nil {
		t.Errorf("when the server goes on the holder renews with %v", err)
	}
}

// Missing rights and a token that is no longer valid are unknown, not lost; a new token is read.
func TestRightsAndTokens(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Start(t)
	token := t.TempDir() + "/token"
	f := &fake{t: t}
	f.file(token, "first")
	server.SetToken(t, "worker", "first")
	c := client(t, Config{Kubeconfig: server.KubeconfigFiles(t, server.Addr(), token), Proxy: "one"})
	p := c.Database("db")
	denied := func(what string, err error, answer string) {
		t.Helper()
		var denied *election.DeniedError
		if errors.Is(err, election.ErrLost) || !errors.As(err, &denied) || !strings.Contains(denied.Answer, answer) || denied.Remedy == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	eventually(t, "the client knows that it has no rights", func() bool { return c.Healthy() != nil })
	denied("without rights: watch", c.Healthy(), `cannot list resource "leases"`)
	denied("without rights: check", c.Check(t.Context(), nil), "Forbidden")

	manifest, err := os.ReadFile("../../etc/kubernetes-leases.yml")
	if err != nil {
		t.Fatal(err)
	}
	grant(t, server, string(manifest))
	lease := acquire(t, p, bid("a"))
	if err := c.Check(t.Context(), []time.Duration{long}); err != nil {
		t.Errorf("with the rights of the manifest: %v", err)
	}
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with the rights of the manifest: renew: %v", err)
	}
	server.Request(t, http.MethodDelete, "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings/fencepost-leases", "application/json", "")
	eventually(t, "the rights are gone", func() bool { return p.Renew(t.Context(), lease) != nil })
	denied("after the rights were taken away: renew", p.Renew(t.Context(), lease), "Forbidden")
	grant(t, server, string(manifest))
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with the rights again: renew: %v", err)
	}

	server.SetToken(t, "worker", "second") // which takes the place of the first
	eventually(t, "the old token is refused", func() bool {
		err := p.Renew(t.Context(), lease)
		return isStatus(err, http.StatusUnauthorized) && !errors.Is(err, election.ErrLost)
	})
	f.file(token, "second")
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with the new token: renew: %v", err)
	}
	if err := p.Release(t.Context(), lease, election.ReasonLeft, 0); err != nil {
		t.Errorf("with the new token: release: %v", err)
	}
	by := client(t, Config{Kubeconfig: server.KubeconfigCert(t, server.Addr(), "operator", "system:masters"), Proxy: "two"})
	acquire(t, by.Database("db"), bid("b"))
}

// grant gives the user of the tests the rights of a manifest's Role, which is all that Fencepost
// needs.
func grant(t *testing.T, server *kubernetestest.Server, manifest string) {
	t.Helper()
	for _, document := range strings.Split(manifest, "\n---\n") {
		path := map[string]string{"Role": "/roles/", "RoleBinding": "/rolebindings/"}
		for kind, where := range path {
			if !strings.Contains(document, "\nkind: "+kind+"\n") {
				continue
			}
			if kind == "RoleBinding" {
				document += "\n  - {kind: User, name: worker, apiGroup: rbac.authorization.k8s.io}\n"
			}
			server.Request(t, http.MethodPatch, "/apis/rbac.authorization.k8s.io/v1/namespaces/default"+where+"fencepost-leases?fieldManager=test&force=true", "application/apply-patch+yaml", document)
		}
	}
}

// An answer 429 or 503 of what stands in front of the API server loses no lease.
func TestABusyServerLosesNoLease(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	answers := make(chan int, 10)
	addr := front(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		select {
		case code := <-answers:
			w.Header().Set("Retry-After", "1")
			status(w, code, "TooManyRequests", "busy")
			return true
		default:
			return false
		}
	})
	p := client(t, Config{Kubeconfig: plainConfig(t, addr), Prefix: "busy", Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a"))
	for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		answers <- code
		if err := renew(t, p, lease); err != nil {
			t.Errorf("after an answer %d the holder renews with %v", code, err)
		}
	}
}

// etcd is restored beneath the running API server, which does not know it: reads of single
// objects show what there is, and indexes are given again under the same marker.
func TestEtcdIsRestoredBeneathTheServer(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Start(t)
	s := onServer(t, server)
	if err := s.Mark(t.Context(), "marker", false); err != nil {
		t.Fatal(err)
	}
	turn := func(record string) (string, int64) {
		t.Helper()
		life, version := award(t, s, record)
		if err := s.End(t.Context(), life); err != nil {
			t.Fatal(err)
		}
		return life, version
	}
	turn("before")
	backup := server.Backup(t)
	var first []int64
	for i := range 3 {
		_, version := turn(fmt.Sprint("forgotten ", i))
		first = append(first, version)
	}
	server.Restore(t, backup)
	e := read(t, s)
	if string(e.Record) != "before" || e.Marker != "marker" || e.Life != "" {
		t.Errorf("after the restore it is read as %+v", e)
	}
	var all list
	if err := s.api.do(t.Context(), request{verb: "list", method: http.MethodGet, query: s.selector(), into: &all}); err != nil {
		t.Fatal(err)
	}
	for _, o := range all.Items {
		t.Logf("a list shows %s at %s, with the record %q", o.Metadata.Name, o.Metadata.ResourceVersion, o.note(noteRecord))
	}
	life, version := award(t, s, "after")
	t.Logf("awards %v, then again %d", first, version)
	if version > first[len(first)-1] {
		t.Errorf("award %d repeats nothing, so this proves nothing", version)
	}
	if err := s.Beat(t.Context(), key, life); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	if e := read(t, s); e.Life != life || e.Version != version {
		t.Errorf("award %d of %s is read as %+v", version, life, e)
	}
}

// Two hundred leases, their renewals and their watches need one connection.
func TestManyLeasesShareOneConnection(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	link := electiontest.NewLink(t, server.Addr())
	p := client(t, Config{Kubeconfig: server.Kubeconfig(t, link.Addr(), kubernetestest.Admin), Prefix: "many", Proxy: "one"}).Database("db")
	const leases = 200
	ended, held := make(chan error), make(chan *election.Lease, leases)
	began := time.Now()
	for i := range leases {
		go func() {
			b := bid(fmt.Sprint("w", i))
			b.Resource = fmt.Sprint("r", i)
			lease, err := p.Acquire(t.Context(), b)
			if err == nil {
				held <- lease
				err = p.Renew(t.Context(), lease)
			}
			for obs := (election.LeaseObservation{}); err == nil && obs.Incarnation != b.Incarnation; {
				obs, err = p.Watch(t.Context(), b.Resource, obs)
			}
			ended <- err
		}()
	}
	for range leases {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d leases were awarded, renewed once and seen in %v", leases, time.Since(began))
	began = time.Now()
	close(held)
	for lease := range held {
		go func() { ended <- p.Renew(t.Context(), lease) }()
	}
	for range leases {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d leases were renewed in %v", leases, time.Since(began))
	if made := link.Made(); made != 1 {
		t.Errorf("%d connections were made", made)
	}
}

// A proxy that starts ends what it has left, and nobody else's.
func TestStartingProxyEndsItsOldLeases(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	openAs := func(proxy string) election.Provider {
		return client(t, Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Prefix: "starting", Proxy: proxy}).Database("db")
	}
	mine, other := openAs("one"), openAs("two")
	acquire(t, mine, bid("a"))
	theirs := bid("b")
	theirs.Resource = "shipping"
	held := acquire(t, other, theirs)
	again := openAs("one")
	began := time.Now()
	acquire(t, again, bid("c"))
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the old lease was free after %v", took)
	}
	if err := renew(t, other, held); err != nil {
		t.Errorf("another proxy's lease was lost: %v", err)
	}
}

func TestNamesOnAServer(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Shared(t)
	c := client(t, Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Prefix: "names", Proxy: "one"})
	for _, name := range [][2]string{
		{"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {".", "c"}, {"..", "c"}, {"a", ".generation"}, {"a", "generation"}, {"ä", "ö"}, {"a b", "?c#d"},
		{"a", "b"}, {"A", "b"}, {strings.Repeat("x", 63), strings.Repeat("ü", 100)},
	} {
		b := bid("w" + name[0] + "|" + name[1])
		b.Resource = name[1]
		p := c.Database(name[0])
		lease, err := p.Acquire(t.Context(), b)
		if err != nil {
			t.Errorf("the lease of %q is not free: %v", name, err)
			continue
		}
		if err := p.Renew(t.Context(), lease); err != nil {
			t.Errorf("the lease of %q renews with %v", name, err)
		}
		var obs election.LeaseObservation
		for err == nil && obs.State != election.Held {
			obs, err = p.Watch(t.Context(), name[1], obs)
		}
		if err != nil || obs.Incarnation != b.Incarnation {
			t.Errorf("the lease of %q is seen as %+v, %v", name, obs, err)
		}
	}
}
