package zookeeper_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// A client certificate names whoever may use the znodes.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca := pgtest.NewAuthority(t)
	server := ca.Issue(t, pgtest.Subject{Name: "zookeeper", Hosts: []string{"127.0.0.1", "zookeeper.internal"}})
	both := filepath.Join(t.TempDir(), "server.pem")
	if err := os.WriteFile(both, append(contents(t, server.CertFile), contents(t, server.KeyFile)...), 0o600); err != nil {
		t.Fatal(err)
	}
	ensemble := zookeepertest.Start(t, zookeepertest.WithTLS(ca.File, both))
	electiontest.Certificates{
		Authority: ca, Host: "zookeeper.internal", Plain: "or it expects TLS", Remedy: remedy,
		Open: func(proxy string, f electiontest.Files) (electiontest.Client, error) {
			return open(t, zookeeper.Config{
				Servers: []string{ensemble.SecureAddr()}, TLS: !f.Plain, TLSClient: f.TLSClient, Proxy: proxy,
			})
		},
	}.Run(t)
	if acl, _, err := ensemble.Client(t, "", "").GetACL("/fencepost/db/billing"); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("without a certificate anybody reads the ACL %v, %v", acl, err)
	}
}

// ZooKeeper compares the hash of a password with the ACLs, which name the new one too before it is
// used.
func TestThePasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	ensemble := zookeepertest.Start(t)
	electiontest.PasswordFile{
		Setting: "election.zookeeper.password_file", Refused: remedy,
		Open: func(file string) (electiontest.Client, error) {
			return open(t, zookeeper.Config{Servers: ensemble.Addrs(), Proxy: "one", Login: files.Login{User: "full", PasswordFile: file}})
		},
		Change: func(password string) {
			admin{t, ensemble.Client(t, "full", "secret")}.allow("/fencepost", zk.DigestACL(zk.PermAll, "full", password))
		},
	}.Run(t)
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
