package zookeeper_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// A client certificate names whoever may use the znodes, both sides verify each other, and files
// that were renewed are used without a restart.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca, other := pgtest.NewAuthority(t), pgtest.NewAuthority(t)
	server := ca.Issue(t, pgtest.Subject{Name: "zookeeper", Hosts: []string{"127.0.0.1", "zookeeper.internal"}})
	both := filepath.Join(t.TempDir(), "server.pem")
	write(t, both, append(contents(t, server.CertFile), contents(t, server.KeyFile)...))
	ensemble := zookeepertest.Start(t, zookeepertest.WithTLS(ca.File, both))
	full := ca.Issue(t, pgtest.Subject{Name: "full"})
	cfg := zookeeper.Config{
		Servers: []string{ensemble.SecureAddr()}, TLS: true, CAFile: ca.File, CertFile: full.CertFile, KeyFile: full.KeyFile, TTL: long, Proxy: "one",
	}
	p := client(t, cfg).Database("db")
	lease := acquire(t, p, bid("a", long))
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Fatalf("renew: %v", err)
	}
	acl, _, err := ensemble.Client(t, "", "").GetACL("/fencepost/db/billing")
	if !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("without a certificate anybody reads the ACL %v, %v", acl, err)
	}

	none := ca.Issue(t, pgtest.Subject{Name: "none"})
	cfg.CertFile, cfg.KeyFile, cfg.Proxy = none.CertFile, none.KeyFile, "two"
	q := client(t, cfg).Database("db")
	_, err = q.Acquire(within(t, patience), bid("b", long))
	isDenied(t, "a certificate without rights: acquire", err)
	for name, c := range map[string]struct {
		change func(c *zookeeper.Config)
		want   string
	}{
		"no certificate":             {func(c *zookeeper.Config) { c.CertFile, c.KeyFile = "", "" }, ""}, // the server may hang up before it says why
		"the server's is not known":  {func(c *zookeeper.Config) { c.CAFile = other.File }, "certificate signed by unknown authority"},
		"the server's is of another": {func(c *zookeeper.Config) { c.ServerName = "zookeeper.example" }, "certificate is valid for zookeeper.internal, not zookeeper.example"},
		"no TLS":                     {func(c *zookeeper.Config) { c.TLS = false }, "or it expects TLS"},
	} {
		bad := cfg
		c.change(&bad)
		r := client(t, bad).Database("db")
		eventually(t, name+": the error says "+c.want, patience, func() bool {
			_, err := r.Acquire(within(t, patience), bid("b", long))
			if err == nil || errors.Is(err, election.ErrHeld) {
				t.Fatalf("%s: acquire ended with %v", name, err)
			}
			return strings.Contains(err.Error(), "cannot be reached") && strings.Contains(err.Error(), c.want)
		})
	}
	named := cfg
	named.CertFile, named.KeyFile, named.ServerName = full.CertFile, full.KeyFile, "zookeeper.internal"
	if _, err := client(t, named).Database("db").Acquire(within(t, patience), bid("b", long)); !errors.Is(err, election.ErrHeld) {
		t.Errorf("the name in the server's certificate: acquire ended with %v", err)
	}
	for name, bad := range map[string]zookeeper.Config{
		"a key that does not fit": {Servers: cfg.Servers, TLS: true, CertFile: none.CertFile, KeyFile: full.KeyFile, Proxy: "two"},
		"no file":                 {Servers: cfg.Servers, TLS: true, CAFile: "/nowhere/ca.pem", Proxy: "two"},
	} {
		if _, err := zookeeper.New(bad); err == nil || !strings.Contains(err.Error(), "_file") {
			t.Errorf("%s: %v", name, err)
		}
	}

	ca.Renew(t, none, pgtest.Subject{Name: "full"}) // the files of "none" now name another one
	ensemble.Kill(0)                                // so that all connect again
	ensemble.Restart(t)
	eventually(t, "the renewed certificate is used", patience, func() bool {
		_, err := q.Acquire(within(t, patience), bid("b", long))
		return errors.Is(err, election.ErrHeld)
	})
}

// ZooKeeper compares the hash of a password with the ACLs, which name the new one too before it is
// used.
func TestThePasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t)
	cfg := zookeeper.Config{Servers: ensemble.Addrs(), TTL: long, Proxy: "one", User: "full", PasswordFile: filepath.Join(t.TempDir(), "password")}
	if _, err := zookeeper.New(cfg); err == nil || !strings.Contains(err.Error(), "election.zookeeper.password_file") {
		t.Errorf("without the file: %v", err)
	}
	write(t, cfg.PasswordFile, []byte("secret\n"))
	p := client(t, cfg).Database("db")
	lease := acquire(t, p, bid("a", long))
	as := admin{t, ensemble.Client(t, "full", "secret")}
	as.allow("/fencepost", zk.DigestACL(zk.PermAll, "full", "another"))
	isDenied(t, "with the old password: renew", p.Renew(within(t, patience), lease))
	write(t, cfg.PasswordFile, []byte("another\n"))
	eventually(t, "the new password is used", patience, func() bool { return p.Renew(within(t, patience), lease) == nil })
}

// allow sets the ACL of a znode and of all below it.
func (a admin) allow(path string, acl []zk.ACL) {
	a.t.Helper()
	children, _, err := a.conn.Children(path)
	if err != nil {
		a.t.Fatalf("list %s: %v", path, err)
	}
	for _, c := range children {
		a.allow(path+"/"+c, acl)
	}
	if _, err := a.conn.SetACL(path, acl, -1); err != nil {
		a.t.Fatalf("set the ACL of %s: %v", path, err)
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
