package etcd_test

import (
	"crypto/tls"
	"testing"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// A client certificate names the user.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca := pgtest.NewAuthority(t)
	server := ca.Issue(t, pgtest.Subject{Name: "etcd", Hosts: []string{"127.0.0.1", "etcd.internal"}})
	root := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, pgtest.Subject{Name: "root"}).Load(t)}}
	cluster := etcdtest.Start(t, etcdtest.WithTLS(ca.File, server.CertFile, server.KeyFile, root))
	authenticate(t, cluster, "", "")
	electiontest.Certificates{
		Authority: ca, Host: "etcd.internal", Remedy: remedy,
		Open: func(proxy string, f electiontest.Files) (electiontest.Client, error) {
			return open(t, etcd.Config{
				Endpoints: cluster.Endpoints(), TLS: !f.Plain, TLSClient: f.TLSClient, Proxy: proxy,
			})
		},
	}.Run(t)
}

func TestThePasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	admin := authenticate(t, cluster, "root", "secret")
	electiontest.PasswordFile{
		Setting: "election.etcd.password_file",
		Open: func(file string) (electiontest.Client, error) {
			return open(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one", Login: files.Login{User: "full", PasswordFile: file}})
		},
		Change: func(password string) {
			if _, err := admin.UserChangePassword(within(t, patience), "full", password); err != nil {
				t.Fatal(err)
			}
		},
	}.Run(t)
}
