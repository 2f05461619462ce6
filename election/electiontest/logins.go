package electiontest

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// Login is a user of a service.
type Login struct {
	User, Password string
	Remedy         string // what is in the remedy if this user is denied something; "" is as for the holder
}

// Rights is a service that denies something to those who have no right to it, and to the holder of a lease for a
// while. What is denied is unknown, not lost.
type Rights struct {
	Open      func(Login) Client
	Holder    Login
	Strangers map[string]Login
	Sessions  bool                 // no one but the client that took a lease can renew it
	Deny      func(*elector.Lease) // to the holder, and Allow takes that back
	Allow     func(*elector.Lease)
}

// Run fails the test unless those without rights learn that, and the holder continues when it has them again.
func (r Rights) Run(t *testing.T) {
	t.Helper()
	p := r.Open(r.Holder).Database("db")
	lease := Acquire(t, p, Bid("a", longTTL))
	renewed := func(when string) {
		t.Helper()
		if err := Renew(t, p, lease); err != nil {
			t.Errorf("%s the holder renews with %v", when, err)
		}
	}
	renewed("with all rights")
	for name, stranger := range r.Strangers {
		q, remedy := r.Open(stranger).Database("db"), cmp.Or(stranger.Remedy, r.Holder.Remedy)
		other := Bid(name, longTTL)
		other.Resource = "other"
		if !r.Sessions {
			IsDenied(t, name+": renew", q.Renew(within(t, patience), lease), remedy)
		}
		_, err := q.Acquire(within(t, patience), other)
		IsDenied(t, name+": acquire", err, remedy)
		_, err = q.Watch(within(t, patience), "other", elector.Observation{})
		IsDenied(t, name+": watch", err, remedy)
	}
	r.Deny(lease)
	IsDenied(t, "after a right was taken away: renew", p.Renew(within(t, patience), lease), r.Holder.Remedy)
	r.Allow(lease)
	renewed("whose right was restored,")
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("it releases with %v", err)
	}
}

// PasswordFile is a service whose clients read the password of the user "full" from a file.
type PasswordFile struct {
	Setting string // that names the file
	Open    func(file string) (Client, error)
	Change  func(password string) // of the user, which is "secret" at first
	Refused string                // in the remedy for who has the former password; "" if the service tells that only who logs in
}

// Run fails the test unless a client without the file is refused, and the holder of a lease goes on with the new
// password when it is in the file.
func (f PasswordFile) Run(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Open(file); err == nil || !strings.Contains(err.Error(), f.Setting) {
		t.Errorf("without the file: %v", err)
	}
	write("secret")
	client, err := f.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	p := client.Database("db")
	lease := Acquire(t, p, Bid("a", longTTL))
	f.Change("another")
	if f.Refused != "" {
		IsDenied(t, "with the former password: renew", p.Renew(within(t, patience), lease), f.Refused)
	}
	write("another")
	if err := Renew(t, p, lease); err != nil {
		t.Errorf("with the new password: %v", err)
	}
}

// Files are the settings of TLS.
type Files struct {
	Plain bool // without TLS
	files.TLSClient
}

// Certificates is a service under TLS that wants certificates of its clients.
type Certificates struct {
	Authority *pgtest.Authority // of all certificates
	Host      string            // also in the service's certificate
	Open      func(proxy string, files Files) (Client, error)
	Plain     string // what the error of a connection without TLS contains
	Remedy    string // if certificates name users, of whom "full" has all rights: of another user
}

// Run fails the test unless both sides verify each other, and files that were renewed are used without a restart. It
// leaves the lease of the resource billing in the database db held.
func (c Certificates) Run(t *testing.T) {
	t.Helper()
	stranger := pgtest.NewAuthority(t)
	full, none := c.Authority.Issue(t, pgtest.Subject{Name: "full"}), c.Authority.Issue(t, pgtest.Subject{Name: "none"})
	foreign := stranger.Issue(t, pgtest.Subject{Name: "full"})
	as := func(pair pgtest.Pair) Files {
		return Files{TLSClient: files.TLSClient{CAFile: c.Authority.File, CertFile: pair.CertFile, KeyFile: pair.KeyFile}}
	}
	open := func(proxy string, files Files) elector.Provider {
		t.Helper()
		client, err := c.Open(proxy, files)
		if err != nil {
			t.Fatal(err)
		}
		return client.Database("db")
	}
	p := open("one", as(full))
	lease := Acquire(t, p, Bid("a", longTTL))
	// ask asks for the lease, which is held.
	ask := func(q elector.Provider) error {
		t.Helper()
		if err := Renew(t, p, lease); err != nil {
			t.Fatalf("renew: %v", err)
		}
		_, err := q.Acquire(within(t, patience), Bid("b", longTTL))
		return err
	}
	unreached := func(name, want string, q elector.Provider) {
		t.Helper()
		eventually(t, name+": the error says "+want, patience, func() bool {
			err := ask(q)
			if err == nil || errors.Is(err, elector.ErrHeld) {
				t.Fatalf("%s: acquire ended with %v", name, err)
			}
			return strings.Contains(err.Error(), "cannot be reached") && strings.Contains(err.Error(), want)
		})
	}
	for name, bad := range map[string]struct {
		change func(*Files)
		want   string // "": the server may hang up before it says why
	}{
		"no certificate":             {func(f *Files) { f.CertFile, f.KeyFile = "", "" }, ""},
		"no TLS":                     {func(f *Files) { f.Plain = true }, c.Plain},
		"the server's is not known":  {func(f *Files) { f.CAFile = stranger.File }, "certificate signed by unknown authority"},
		"the server's is of another": {func(f *Files) { f.ServerName = "other.example" }, "certificate is valid for " + c.Host + ", not other.example"},
	} {
		settings := as(full)
		bad.change(&settings)
		unreached(name, bad.want, open("with "+name, settings))
	}
	named := as(full)
	named.ServerName = c.Host
	if err := ask(open("named", named)); !errors.Is(err, elector.ErrHeld) {
		t.Errorf("the name in the server's certificate: acquire ended with %v", err)
	}
	if c.Remedy != "" {
		IsDenied(t, "a user without rights: acquire", ask(open("without rights", as(none))), c.Remedy)
	}
	for name, settings := range map[string]Files{
		"a key that does not fit": {TLSClient: files.TLSClient{CertFile: none.CertFile, KeyFile: full.KeyFile}},
		"no file":                 {TLSClient: files.TLSClient{CAFile: "/nowhere/ca.pem"}},
		"a file of another kind":  {TLSClient: files.TLSClient{CAFile: none.KeyFile}},
	} {
		if _, err := c.Open("none", settings); err == nil || !strings.Contains(err.Error(), "_file") {
			t.Errorf("%s: %v", name, err)
		}
	}
	q := open("two", as(foreign))
	unreached("a certificate of another authority", "", q)
	c.Authority.Renew(t, foreign, pgtest.Subject{Name: "full"}) // in the same files
	eventually(t, "the renewed certificate is used", patience, func() bool { return errors.Is(ask(q), elector.ErrHeld) })
}
