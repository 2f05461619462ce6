// Package kubernetestest runs a real kube-apiserver for tests, with an etcd of its own.
//
// There is nothing else of Kubernetes: no kubelet and no controller. The server dies with the test
// process.
package kubernetestest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/ports"
	"github.com/fencepost/fencepost/internal/servertest"
)

// Admin is the token of a user who may do everything.
const Admin = "admin-token"

// patience bounds the start of a server and each request of this package.
const patience = 180 * time.Second

// Server is an API server.
type Server struct {
	servertest.Process
	dir    string
	etcd   *etcdtest.Cluster
	port   *ports.Port
	keys   *keys
	client *http.Client
}

var shared servertest.Shared[*Server]

// Shared returns the server that all tests of this process share. Tests must not change it and
// must use prefixes of their own. StopShared ends it.
func Shared(t testing.TB) *Server {
	t.Helper()
	return shared.Get(t, func() (*Server, error) { return start(etcdtest.Shared(t)) })
}

// StopShared ends the shared server and its etcd, if there are any. It is called after the last
// test of the process.
func StopShared() {
	shared.Stop()
	etcdtest.StopShared()
}

// Start returns a server for one test, which may stop, pause or restore it. It ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := start(etcdtest.Start(t))
	if err != nil {
		t.Fatalf("start kube-apiserver: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Addr returns host:port of the server.
func (s *Server) Addr() string { return s.port.Address() }

// SetToken makes the server know this user by this token, and by no other. It needs a restart,
// which it does.
func (s *Server) SetToken(t testing.TB, user, token string) {
	t.Helper()
	s.Kill()
	if err := s.writeTokens(fmt.Sprintf("%s,%s,%s\n", token, user, user)); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
}

// Restart starts the server after Kill, and returns when it serves.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatalf("start kube-apiserver again: %v", err)
	}
}

// Backup returns a copy of what etcd has, which is stopped meanwhile.
func (s *Server) Backup(t testing.TB) (backup string) {
	t.Helper()
	backup = s.etcd.Backup(t)
	s.settle(t)
	return backup
}

// Restore puts a copy in place of what etcd has, beneath the running server.
func (s *Server) Restore(t testing.TB, backup string) {
	t.Helper()
	s.etcd.Restore(t, backup)
	s.settle(t)
}

// RestoreStopped is like Restore, for a server that is stopped. It is how Kubernetes says that etcd
// should be restored.
func (s *Server) RestoreStopped(t testing.TB, backup string) {
	t.Helper()
	s.etcd.Restore(t, backup)
}

// Transport returns what sends requests to the server. Its owner closes its idle connections.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{TLSClientConfig: s.keys.trust(), ForceAttemptHTTP2: true}
}

// settle waits until the server has its etcd again.
func (s *Server) settle(t testing.TB) {
	t.Helper()
	if err := s.await(); err != nil {
		t.Fatal(err)
	}
}

// Request sends a request as the administrator, and returns the body of the answer. It fails the
// test unless the status is one of 200 to 299, or 404.
func (s *Server) Request(t testing.TB, method, path, contentType, body string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, answer, err := s.request(ctx, method, path, contentType, body)
	if err != nil || code != http.StatusNotFound && (code < 200 || code > 299) {
		t.Fatalf("%s %s: %d %s: %v", method, path, code, answer, err)
	}
	return answer
}

func (s *Server) request(ctx context.Context, method, path, contentType, body string) (code int, answer string, err error) {
	req, err := http.NewRequestWithContext(ctx, method, "https://"+s.Addr()+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+Admin)
	req.Header.Set("Content-Type", contentType)
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// Stop ends the server. Stopping twice is harmless.
func (s *Server) Stop() {
	s.Kill()
	s.port.Release()
	_ = s.Log.Close()
	_ = os.RemoveAll(s.dir)
}

// start starts a server on an etcd.
func start(etcd *etcdtest.Cluster) (*Server, error) {
	dir, err := os.MkdirTemp("", "kube-apiserver-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, etcd: etcd}
	s.Process = servertest.Process{Name: "Kubernetes", Program: "kube-apiserver", Variable: "FENCEPOST_TEST_KUBE_APISERVER"}
	var errs [4]error
	s.keys, errs[0] = newKeys(dir)
	s.port, errs[1] = ports.Reserve()
	s.Log, errs[2] = os.Create(filepath.Join(dir, "log"))
	errs[3] = s.writeTokens("")
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	s.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.keys.trust()}}
	if err := s.run(); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

func (s *Server) path(name string) string { return filepath.Join(s.dir, name) }

// writeTokens writes the tokens of users, in addition to the administrator's: token,user,uid in each line.
func (s *Server) writeTokens(more string) error {
	return os.WriteFile(s.path("tokens"), []byte(Admin+`,admin,admin,"system:masters"`+"\n"+more), 0o600)
}

// run starts the process, and waits until it serves.
func (s *Server) run() error {
	s.Args = []string{
		"--etcd-servers=http://" + s.etcd.Addr(), "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", s.port.Number),
		"--tls-cert-file=" + s.path("server.crt"), "--tls-private-key-file=" + s.path("server.key"), "--client-ca-file=" + s.keys.caFile,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + s.path("accounts.key"), "--service-account-key-file=" + s.path("accounts.key"),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file=" + s.path("tokens"),
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none", "--v=1",
	}
	if err := s.Launch(); err != nil {
		return err
	}
	return s.await()
}

// await returns when the server is ready, and has the namespace in which tests work.
func (s *Server) await() error {
	return s.Await(patience, func() error {
		if err := s.ready("/readyz"); err != nil {
			return err
		}
		return s.ready("/api/v1/namespaces/default")
	})
}

func (s *Server) ready(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	code, answer, err := s.request(ctx, http.MethodGet, path, "application/json", "")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, code, strings.TrimSpace(answer))
	}
	return err
}
