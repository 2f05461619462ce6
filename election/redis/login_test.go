package redis_test

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election"
	"github.com/fencepost/fencepost/election/redis"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/redistest"
)

// Users without a right, with a wrong password or without one, and a right that is taken away and
// given back while its user holds a lease.
func TestMissingRightsAreUnknownNotLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.WithPassword("secret"))
	p := client(t, redis.Config{Address: server.Addr(), Password: "secret", Proxy: "one"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	server.Do(t, "ACL", "SETUSER", "none", "on", ">secret")
	for name, c := range map[string]struct{ user, password, remedy string }{
		"no rights":              {"none", "secret", "ACL SETUSER none ~fencepost/* +eval"},
		"a wrong password":       {"", "wrong", "Set election.redis.user and its password"},
		"no password":            {"", "", "Set election.redis.user and its password"},
		"a user that is unknown": {"nobody", "secret", "Set election.redis.user and its password"},
	} {
		q := client(t, redis.Config{Address: server.Addr(), Proxy: "of " + name, User: c.user, Password: c.password}).Database("db")
		isDenied(t, name+": renew", q.Renew(within(t, patience), lease), c.remedy)
		_, err := q.Acquire(within(t, patience), bid(name, long))
		isDenied(t, name+": acquire", err, c.remedy)
		_, err = q.Watch(within(t, patience), "billing", election.LeaseObservation{})
		isDenied(t, name+": watch", err, c.remedy)
	}
	server.Do(t, "ACL", "SETUSER", "default", "-pexpire")
	isDenied(t, "without PEXPIRE: renew", p.Renew(within(t, patience), lease), "+pexpire")
	server.Do(t, "ACL", "SETUSER", "default", "+pexpire")
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder, whose right was restored, renews with %v", err)
	}
}

func TestThePasswordIsReadAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do(t, "ACL", "SETUSER", "fencepost", "on", ">secret", "~*", "+@all")
	cfg := redis.Config{Address: server.Addr(), Proxy: "one", User: "fencepost", PasswordFile: filepath.Join(t.TempDir(), "password")}
	if _, err := redis.New(cfg); err == nil || !strings.Contains(err.Error(), "election.redis.password_file") {
		t.Errorf("without the file: %v", err)
	}
	write(t, cfg.PasswordFile, "secret\n")
	p := client(t, cfg).Database("db")
	lease := acquire(t, p, bid("a", long))
	server.Do(t, "ACL", "SETUSER", "fencepost", "resetpass", ">another")
	server.Do(t, "CLIENT", "KILL", "USER", "fencepost")
	write(t, cfg.PasswordFile, "another\n")
	if err := renew(t, p, lease); err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

// Both sides verify each other, and files that were renewed are used without a restart.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca, other := pgtest.NewAuthority(t), pgtest.NewAuthority(t)
	names := pgtest.Subject{Name: "redis", Hosts: []string{"127.0.0.1", "redis.internal"}}
	server := ca.Issue(t, names)
	operator := &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Issue(t, pgtest.Subject{Name: "operator"}).Load(t)}}
	r := redistest.Start(t, redistest.WithTLS(ca.File, server.CertFile, server.KeyFile, operator))
	mine := ca.Issue(t, pgtest.Subject{Name: "fencepost"})
	cfg := redis.Config{Address: r.Addr(), TLS: true, CAFile: ca.File, CertFile: mine.CertFile, KeyFile: mine.KeyFile, Proxy: "one"}
	p := client(t, cfg).Database("db")
	lease := acquire(t, p, bid("a", long))
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Fatalf("renew: %v", err)
	}
	for name, c := range map[string]struct {
		change func(c *redis.Config)
		want   string
	}{
		"no certificate":             {func(c *redis.Config) { c.CertFile, c.KeyFile = "", "" }, ""}, // the server may hang up before it says why
		"no TLS":                     {func(c *redis.Config) { c.TLS = false }, ""},
		"the server's is not known":  {func(c *redis.Config) { c.CAFile = other.File }, "certificate signed by unknown authority"},
		"the server's is of another": {func(c *redis.Config) { c.ServerName = "redis.example" }, "certificate is valid for redis.internal, not redis.example"},
	} {
		bad := cfg
		bad.Proxy = "with " + name // a proxy that starts ends the leases under its name
		c.change(&bad)
		err := client(t, bad).Database("db").Renew(within(t, patience), lease)
		if err == nil || errors.Is(err, election.ErrLost) || !strings.Contains(err.Error(), "cannot be reached") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: renew ended with %v", name, err)
		}
	}
	named := cfg
	named.ServerName, named.Proxy = "redis.internal", "named"
	if err := client(t, named).Database("db").Renew(within(t, patience), lease); err != nil {
		t.Errorf("the name in the server's certificate: renew ended with %v", err)
	}
	for name, bad := range map[string]redis.Config{
		"a key that does not fit": {Address: r.Addr(), TLS: true, CertFile: mine.CertFile, KeyFile: server.KeyFile, Proxy: "two"},
		"no file":                 {Address: r.Addr(), TLS: true, CAFile: "/nowhere/ca.pem", Proxy: "two"},
		"a file of another kind":  {Address: r.Addr(), TLS: true, CAFile: mine.KeyFile, Proxy: "two"},
	} {
		if _, err := redis.New(bad); err == nil || !strings.Contains(err.Error(), "_file") {
			t.Errorf("%s: %v", name, err)
		}
	}

	foreign := other.Issue(t, pgtest.Subject{Name: "fencepost"}) // which the server does not accept
	bad := cfg
	bad.CertFile, bad.KeyFile, bad.Proxy = foreign.CertFile, foreign.KeyFile, "three"
	q := client(t, bad).Database("db")
	if err := q.Renew(within(t, patience), lease); err == nil || errors.Is(err, election.ErrLost) {
		t.Errorf("with a certificate of another authority: renew ended with %v", err)
	}
	ca.Renew(t, foreign, pgtest.Subject{Name: "fencepost"}) // in the same files
	if err := renew(t, q, lease); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
