package kubernetes

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/standstill"
)

// fake is as much of an API server as requests, errors and watches need. What a real one does
// with them is tested with the tag kubernetes.
type fake struct {
	*httptest.Server
	t  *testing.T
	ca string

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with each write
	version int64
	objects map[string]*lease
	events  []event
	numbers []int64 // the version of each event
	// answer, if not nil, answers a request instead of the API server, or returns false.
	answer func(w http.ResponseWriter, r *http.Request) bool
	seen   []string // method, last part of the path and query of each request
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, changed: make(chan struct{}), version: 100, objects: map[string]*lease{}}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.EnableHTTP2 = true
	f.StartTLS()
	t.Cleanup(f.Close)
	f.ca = filepath.Join(t.TempDir(), "ca.crt")
	f.file(f.ca, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw})))
	return f
}

func (f *fake) file(path, text string) {
	f.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// kubeconfig writes a file that leads to the fake, with these lines of a user.
func (f *fake) kubeconfig(user string) string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "kubeconfig")
	f.file(path, fmt.Sprintf(`
current-context: one
contexts: [{name: one, context: {cluster: one, user: one, namespace: apps}}]
clusters: [{name: one, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: one, user: {%s}}]
`, f.URL, f.ca, user))
	return path
}

// store opens a store.
func (f *fake) store() *standstill.Store {
	f.t.Helper()
	return f.storeOf(f.kubeconfig("token: secret"))
}

func (f *fake) storeOf(kubeconfig string) *standstill.Store {
	f.t.Helper()
	return standstill.New(f.serviceOf(kubeconfig), "one", 0)
}

// service opens a service.
func (f *fake) service() *service {
	f.t.Helper()
	return f.serviceOf(f.kubeconfig("token: secret"))
}

func (f *fake) serviceOf(kubeconfig string) *service {
	f.t.Helper()
	s, err := open(Config{Kubeconfig: kubeconfig, Proxy: "one", Logger: zaptest.NewLogger(f.t)})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}

const key = "db/billing"

// read reads the entry, over another connection if one has just been lost.
func read(t *testing.T, s *standstill.Store) (e kv.Entry) {
	t.Helper()
	err := until(func() (err error) {
		e, err = s.Read(t.Context(), key)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func award(t *testing.T, s *standstill.Store, record string) (life string, version int64) {
	t.Helper()
	begun, err := s.Begin(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	version, err = s.Swap(t.Context(), key, read(t, s), []byte(record), begun.ID)
	if err != nil {
		t.Fatal(err)
	}
	return begun.ID, version
}

// answerWith makes a function answer requests, until it returns false.
func (f *fake) answerWith(answer func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func status(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	name, ok := strings.CutPrefix(r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/apps/leases")
	name = strings.TrimPrefix(name, "/")
	f.mu.Lock()
	f.seen = append(f.seen, r.Method+" "+name+"?"+r.URL.RawQuery)
	answer := f.answer
	f.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	switch {
	case !ok:
		http.Error(w, "404 page not found", http.StatusNotFound)
	case r.Header.Get("Authorization") != "Bearer secret":
		status(w, http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	case r.URL.Query().Get("watch") != "":
		f.watch(w, r)
	default:
		f.single(w, r, name)
	}
}

// single answers everything but a watch.
func (f *fake) single(w http.ResponseWriter, r *http.Request, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Method == http.MethodGet && name == "" {
		var all list
		all.Metadata.ResourceVersion = strconv.FormatInt(f.version, 10)
		for _, o := range f.objects {
			all.Items = append(all.Items, o)
		}
		_ = json.NewEncoder(w).Encode(all)
		return
	}
	var o lease
	if r.Method != http.MethodGet {
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(text, &o)
		}
		if err != nil {
			status(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
		name = o.Metadata.Name
	}
	old := f.objects[name]
	switch {
	case r.Method == http.MethodPost && old != nil:
		status(w, http.StatusConflict, "AlreadyExists", "already exists")
		return
	case r.Method != http.MethodPost && old == nil:
		status(w, http.StatusNotFound, "NotFound", "not found")
		return
	case r.Method == http.MethodPut && (o.Metadata.ResourceVersion != old.Metadata.ResourceVersion || o.Metadata.UID != old.Metadata.UID):
		status(w, http.StatusConflict, "Conflict", "the object has been modified")
		return
	}
	if r.Method != http.MethodGet && r.URL.Query().Get("dryRun") == "" {
		f.putLocked(&o)
	}
	_ = json.NewEncoder(w).Encode(f.objects[name])
}

// putLocked stores an object, unless it is what is there.
func (f *fake) putLocked(o *lease) {
	kind := "ADDED"
	if old := f.objects[o.Metadata.Name]; old != nil {
		kind = "MODIFIED"
		o.Metadata.UID = old.Metadata.UID
		a, _ := json.Marshal(old)
		b, _ := json.Marshal(o)
		if string(a) == string(b) {
			return
		}
	}
	f.version++
	if o.Metadata.UID == "" {
		o.Metadata.UID = fmt.Sprint("uid-", f.version)
	}
	o.Metadata.ResourceVersion = strconv.FormatInt(f.version, 10)
	f.objects[o.Metadata.Name] = o
	f.tellLocked(kind, o)
}

func (f *fake) tellLocked(kind string, o *lease) {
	text, _ := json.Marshal(o)
	f.events, f.numbers = append(f.events, event{Type: kind, Object: text}), append(f.numbers, f.version)
	close(f.changed)
	f.changed = make(chan struct{})
}

// change lets someone else change an object.
func (f *fake) change(name string, by func(o *lease)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := &lease{Metadata: metadata{Name: name}}
	if old := f.objects[name]; old != nil {
		text, _ := json.Marshal(old)
		o = new(lease)
		_ = json.Unmarshal(text, o)
	}
	if o.Metadata.Annotations == nil {
		o.Metadata.Annotations = map[string]string{}
	}
	by(o)
	f.putLocked(o)
}

func (f *fake) delete(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.objects[name]; o != nil {
		delete(f.objects, name)
		f.version++
		f.tellLocked("DELETED", o)
	}
}

// object returns an object; nil if there is none.
func (f *fake) object(name string) *lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects[name]
}

// watch sends the events after a version.
func (f *fake) watch(w http.ResponseWriter, r *http.Request) {
	since, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	f.mu.Lock()
	at, _ := slices.BinarySearch(f.numbers, since+1)
	f.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		f.mu.Lock()
		events, changed := f.events[at:], f.changed
		at = len(f.events)
		f.mu.Unlock()
		for _, e := range events {
			_ = json.NewEncoder(w).Encode(e)
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func bid(worker string) elector.AcquireRequest {
	return elector.AcquireRequest{Resource: "billing", Worker: worker, Incarnation: worker + "-1", TTL: time.Minute}
}
