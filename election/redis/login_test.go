package redis_test

import (
	"crypto/tls"
	"testing"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/redis"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

func TestMissingRightsAreUnknownNotLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.WithPassword("secret"))
	server.Do(t, "ACL", "SETUSER", "none", "on", ">secret")
	allow := func(right string) func(*elector.Lease) {
		return func(*elector.Lease) { server.Do(t, "ACL", "SETUSER", "default", right) }
	}
	const login = "Set election.redis.user and its password"
	electiontest.Rights{
		Open: func(who electiontest.Login) electiontest.Client {
			return client(t, redis.Config{Address: server.Addr(), Proxy: "of " + who.User + who.Password, Login: files.Login{User: who.User, Password: who.Password}})
		},
		Holder: electiontest.Login{Password: "secret", Remedy: "+pexpire"},
		Strangers: map[string]electiontest.Login{
			"no rights":              {User: "none", Password: "secret", Remedy: "ACL SETUSER none ~fencepost/* +eval"},
			"a wrong password":       {Password: "wrong", Remedy: login},
			"no password":            {Remedy: login},
			"a user that is unknown": {User: "nobody", Password: "secret", Remedy: login},
		},
		Deny: allow("-pexpire"), Allow: allow("+pexpire"),
	}.Run(t)
}

func TestThePasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do(t, "ACL", "SETUSER", "full", "on", ">secret", "~*", "+@all")
	electiontest.PasswordFile{
		Setting: "election.redis.password_file",
		Open: func(file string) (electiontest.Client, error) {
			return open(t, redis.Config{Address: server.Addr(), Proxy: "one", Login: files.Login{User: "full", PasswordFile: file}})
		},
		Change: func(password string) {
			server.Do(t, "ACL", "SETUSER", "full", "resetpass", ">"+password)
			server.Do(t, "CLIENT", "KILL", "USER", "full")
		},
	}.Run(t)
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	ca := pgtest.NewAuthority(t)
	server := ca.Issue(t, pgtest.Subject{Name: "redis", Hosts: []string{"127.0.0.1", "redis.internal"}})
	operator := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, pgtest.Subject{Name: "operator"}).Load(t)}}
	r := redistest.Start(t, redistest.WithTLS(ca.File, server.CertFile, server.KeyFile, operator))
	electiontest.Certificates{
		Authority: ca, Host: "redis.internal",
		Open: func(proxy string, f electiontest.Files) (electiontest.Client, error) {
			return open(t, redis.Config{Address: r.Addr(), TLS: !f.Plain, TLSClient: f.TLSClient, Proxy: proxy})
		},
	}.Run(t)
}
