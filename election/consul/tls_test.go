package consul_test

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/election/consul"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestTLSFilesAreReadAgain: certificates and the authority are renewed while a lease is held, and the agent's connections
// are cut.
func TestTLSFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	ca, next := pgtest.NewAuthority(t), pgtest.NewAuthority(t)
	host := pgtest.Subject{Name: "consul", Hosts: []string{"127.0.0.1"}}
	server, mine := ca.Issue(t, host), ca.Issue(t, pgtest.Subject{Name: "fencepost"})
	var settings atomic.Pointer[tls.Config]
	settings.Store(&tls.Config{Certificates: []tls.Certificate{server.Load(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})
	agent := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: consultest.Shared(t).Addr()}))
	agent.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail
	agent.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return settings.Load(), nil }}
	agent.StartTLS()
	t.Cleanup(agent.Close)

	prefix := rand.Text()
	cfg := consul.Config{
		Address: strings.TrimPrefix(agent.URL, "https://"), Scheme: "https", Prefix: prefix, Proxy: prefix + "one",
		TLSClient: files.TLSClient{CAFile: ca.File, CertFile: mine.CertFile, KeyFile: mine.KeyFile},
	}
	for name, change := range map[string]func(*consul.Config){
		"a file that is missing":  func(c *consul.Config) { c.CAFile = "/nowhere/ca.pem" },
		"a key that does not fit": func(c *consul.Config) { c.KeyFile = server.KeyFile },
	} {
		bad := cfg
		change(&bad)
		if _, err := consul.New(bad); err == nil || !strings.Contains(err.Error(), "_file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := client(t, cfg).Database("db")
	lease, err := p.Acquire(within(t, patience), bid("a", patience))
	if err != nil {
		t.Fatal(err)
	}
	renewed := func(what string) {
		t.Helper()
		agent.CloseClientConnections()
		if err := renew(t, p, lease); err != nil {
			t.Fatalf("with %s the lease is renewed with %v", what, err)
		}
	}
	renewed("the first files")

	authorities, err := os.ReadFile(next.File)
	if err != nil {
		t.Fatal(err)
	}
	next.Renew(t, mine, pgtest.Subject{Name: "fencepost"})
	if err := os.WriteFile(ca.File, authorities, 0o600); err != nil {
		t.Fatal(err)
	}
	settings.Store(&tls.Config{Certificates: []tls.Certificate{next.Issue(t, host).Load(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: next.Pool()})
	renewed("another certificate and another authority")

	other := cfg
	other.ServerName, other.Proxy = "consul.example", prefix+"two"
	err = client(t, other).Database("db").Renew(within(t, patience), lease)
	if err == nil || errors.Is(err, elector.ErrLost) || !strings.Contains(err.Error(), "consul.example") {
		t.Errorf("an agent of another name: %v", err)
	}
}
