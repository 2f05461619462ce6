package etcd_test

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// A client certificate names the user, both sides verify each other, and a certificate that was
// renewed is used without a restart.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca, other := pgtest.NewAuthority(t), pgtest.NewAuthority(t)
	server := ca.Issue(t, pgtest.Subject{Name: "etcd", Hosts: []string{"127.0.0.1", "etcd.internal"}})
	root := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, pgtest.Subject{Name: "root"}).Load(t)}}
	cluster := etcdtest.Start(t, etcdtest.WithTLS(ca.File, server.CertFile, server.KeyFile, root))
	authenticate(t, cluster, "", "")
	full := ca.Issue(t, pgtest.Subject{Name: "full"})
	cfg := etcd.Config{Endpoints: cluster.Endpoints(), TLS: true, CAFile: ca.File, CertFile: full.CertFile, KeyFile: full.KeyFile, Proxy: "one"}
	p := client(t, cfg).Database("db")
	lease := acquire(t, p, bid("a", long))
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Fatalf("renew: %v", err)
	}

	none := ca.Issue(t, pgtest.Subject{Name: "none"})
	cfg.CertFile, cfg.KeyFile, cfg.Proxy = none.CertFile, none.KeyFile, "two"
	q := client(t, cfg).Database("db")
	isDenied(t, "a user without rights: renew", q.Renew(within(t, patience), lease))
	for name, c := range map[string]struct {
		change func(c *etcd.Config)
		want   string
	}{
		"no certificate":             {func(c *etcd.Config) { c.CertFile, c.KeyFile = "", "" }, ""}, // the server may hang up before it says why
		"the server's is not known":  {func(c *etcd.Config) { c.CAFile = other.File }, "certificate signed by unknown authority"},
		"the server's is of another": {func(c *etcd.Config) { c.ServerName = "etcd.example" }, "certificate is valid for etcd.internal, not etcd.example"},
	} {
		bad := cfg
		c.change(&bad)
		err := client(t, bad).Database("db").Renew(within(t, patience), lease)
		if err == nil || errors.Is(err, election.ErrLost) || !strings.Contains(err.Error(), "cannot be reached") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: renew ended with %v", name, err)
		}
	}
	named := cfg
	named.CertFile, named.KeyFile, named.ServerName = full.CertFile, full.KeyFile, "etcd.internal"
	if err := client(t, named).Database("db").Renew(within(t, patience), lease); err != nil {
		t.Errorf("the name in the server's certificate: renew ended with %v", err)
	}
	for name, bad := range map[string]etcd.Config{
		"a key that does not fit": {Endpoints: cfg.Endpoints, TLS: true, CertFile: none.CertFile, KeyFile: full.KeyFile, Proxy: "two"},
		"no file":                 {Endpoints: cfg.Endpoints, TLS: true, CAFile: "/nowhere/ca.pem", Proxy: "two"},
		"a file of another kind":  {Endpoints: cfg.Endpoints, TLS: true, CAFile: none.KeyFile, Proxy: "two"},
	} {
		if _, err := etcd.New(bad); err == nil || !strings.Contains(err.Error(), "_file") {
			t.Errorf("%s: %v", name, err)
		}
	}

	ca.Renew(t, none, pgtest.Subject{Name: "full"}) // the files of "none" now name another user
	cluster.Kill(0)                                 // so that all connect again
	cluster.Restart(t)
	if err := renew(t, q, lease); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
}

func TestThePasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	admin := authenticate(t, cluster, "root", "secret")
	cfg := etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one", User: "full", PasswordFile: filepath.Join(t.TempDir(), "password")}
	if _, err := etcd.New(cfg); err == nil || !strings.Contains(err.Error(), "election.etcd.password_file") {
		t.Errorf("without the file: %v", err)
	}
	write(t, cfg.PasswordFile, []byte("secret\n"))
	p := client(t, cfg).Database("db")
	lease := acquire(t, p, bid("a", long))
	if _, err := admin.UserChangePassword(within(t, patience), "full", "another"); err != nil {
		t.Fatal(err)
	}
	write(t, cfg.PasswordFile, []byte("another\n"))
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
