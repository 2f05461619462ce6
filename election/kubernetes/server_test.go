//go:build kubernetes

package kubernetes

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
	"github.com/fencepost/fencepost/internal/kubernetestest"
)

// onServer opens a service on a real server, with a prefix of its own.
func onServer(t *testing.T, server *kubernetestest.Server) *service {
	t.Helper()
	s, err := open(Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Prefix: "t" + strings.ToLower(rand.Text()), Proxy: "one"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestStoreOnAServer(t *testing.T) {
	t.Parallel()
	electiontest.RunStore(t, standstill.New(onServer(t, kubernetestest.Shared(t)), "one", 0))
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
		o, err := s.write(ctx, basis, s.next(basis, standstill.Record{Key: key, Text: []byte(record), Write: record}))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := write(nil, "first")
	refused("a second new object", nil, s.next(nil, standstill.Record{Key: key}))
	second := write(first, "second")
	refused("an older version", first, s.next(first, standstill.Record{Key: key}))
	same, err := s.write(ctx, second, second)
	if err != nil || same.Metadata.ResourceVersion != second.Metadata.ResourceVersion {
		t.Errorf("a write without a change made version %s of %s: %v", same.Metadata.ResourceVersion, second.Metadata.ResourceVersion, err)
	}
	as.delete(s.nameOf(key))
	refused("an object that was deleted", second, s.next(second, standstill.Record{Key: key}))
	if o, err := s.get(ctx, s.nameOf(key)); o != nil || err != nil {
		t.Errorf("it was made again: %+v, %v", o, err)
	}
	third := write(nil, "third")
	refused("an object that was deleted and made again", second, s.next(second, standstill.Record{Key: key}))
	a, errA := second.version()
	b, errB := third.version()
	if errors.Join(errA, errB) != nil || b <= a {
		t.Errorf("version %d of a new object came after %d", b, a)
	}
}

const long = 60 * time.Second

// What these tests share with those of other providers.
var (
	acquire = electiontest.Acquire
	renew   = electiontest.Renew
)

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	electiontest.Eventually(t, what, patience, holds)
}

// A server that is killed or frozen ends no term.
func TestTheServerIsAwayWhileALeaseIsHeld(t *testing.T) {
	t.Parallel()
	server := kubernetestest.Start(t)
	s := onServer(t, server)
	electiontest.Outage{
		Service: s.api.name, Client: client(t, Config{Kubeconfig: server.Kubeconfig(t, server.Addr(), kubernetestest.Admin), Proxy: "one"}), TTL: long,
		Kill: server.Kill, Restart: func() { server.Restart(t) }, Pause: func() { server.Pause(t) }, Continue: func() { server.Continue(t) },
	}.Run(t)
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
		var denied *elector.DeniedError
		if errors.Is(err, elector.ErrLost) || !errors.As(err, &denied) || !strings.Contains(denied.Answer, answer) || denied.Remedy == "" {
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
		return isStatus(err, http.StatusUnauthorized) && !errors.Is(err, elector.ErrLost)
	})
	f.file(token, "second")
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with the new token: renew: %v", err)
	}
	if err := p.Release(t.Context(), lease, elector.ReasonLeft, 0); err != nil {
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

// An answer 429 or 503 from a proxy in front of the API server loses no lease.
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
	on := onServer(t, server)
	s := standstill.New(on, "one", 0)
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
	if err := on.api.do(t.Context(), request{verb: "list", method: http.MethodGet, query: on.selector(), into: &all}); err != nil {
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
