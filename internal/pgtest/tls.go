package pgtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Authority is a certificate authority for one test.
type Authority struct {
	File string // its certificate, PEM
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Subject says what a certificate certifies.
type Subject struct {
	Name  string   // common name: for a client, its user
	Hosts []string // host names and addresses of a server
	// Ends is when the certificate expires; the zero time means far in the future.
	Ends time.Time
}

// Pair is a certificate and its key, as files.
type Pair struct{ CertFile, KeyFile string }

// NewAuthority creates an authority whose files exist until the test ends.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a, err := newAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newAuthority(dir string) (*Authority, error) {
	a := &Authority{File: filepath.Join(dir, "ca.crt")}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("create a key: %w", err)
	}
	draft := draft(Subject{Name: "authority of a test"})
	draft.IsCA, draft.BasicConstraintsValid = true, true
	draft.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, draft, draft, a.key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("create a certificate: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("parse a certificate: %w", err)
	}
	return a, writePEM(a.File, "CERTIFICATE", der)
}

func draft(s Subject) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.Name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: s.Ends,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature,
	}
	if s.Ends.IsZero() {
		c.NotAfter = time.Now().Add(24 * time.Hour)
	}
	for _, host := range s.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	return c
}

// Issue creates a certificate in a directory of the test.
func (a *Authority) Issue(t testing.TB, s Subject) Pair {
	t.Helper()
	dir := t.TempDir()
	p := Pair{CertFile: filepath.Join(dir, "it.crt"), KeyFile: filepath.Join(dir, "it.key")}
	a.Renew(t, p, s)
	return p
}

// Renew replaces a certificate by a new one.
func (a *Authority) Renew(t testing.TB, p Pair, s Subject) {
	t.Helper()
	if err := a.issue(p, s); err != nil {
		t.Fatal(err)
	}
}

func (a *Authority) issue(p Pair, s Subject) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create a key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, draft(s), a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("create a certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode a key: %w", err)
	}
	if err := writePEM(p.CertFile, "CERTIFICATE", der); err != nil {
		return err
	}
	return writePEM(p.KeyFile, "PRIVATE KEY", secret)
}

func writePEM(path, kind string, der []byte) error {
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Pool returns a pool with only the authority's certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Load reads the pair for a client or a server in Go.
func (p Pair) Load(t testing.TB) tls.Certificate {
	t.Helper()
	c, err := tls.LoadX509KeyPair(p.CertFile, p.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// WithTLS makes the server offer TLS with that certificate, and verify clients'
// certificates by the authority.
func WithTLS(server Pair, clients *Authority) Option {
	return func(s *Server) {
		s.secrets = map[string]string{"server.crt": server.CertFile, "server.key": server.KeyFile, "clients.crt": clients.File}
		WithConfig(map[string]string{
			"ssl": "on", "ssl_cert_file": "server.crt", "ssl_key_file": "server.key", "ssl_ca_file": "clients.crt",
		})(s)
	}
}

// WithForcedTLS makes the server refuse connections without TLS, except superusers and
// replication, and require a certificate from App if clientcert is not "".
func WithForcedTLS(clientcert string) Option {
	return func(s *Server) {
		s.hba = func(lines string) string {
			lines = strings.ReplaceAll(lines, "host all", "hostssl all")
			if clientcert != "" {
				lines = "hostssl all " + App + " 127.0.0.1/32 trust clientcert=" + clientcert + "\n" + lines
			}
			return "host all " + Superuser + " 127.0.0.1/32 trust\n" + lines
		}
	}
}

// copySecrets gives the server its own copies of the files that it needs, because it
// rejects a key that others could read.
func (s *Server) copySecrets() error {
	for name, from := range s.secrets {
		text, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("read a file for the server: %w", err)
		}
		to := filepath.Join(s.data(), name)
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return fmt.Errorf("write a file for the server: %w", err)
		}
		if err := s.own(to); err != nil {
			return err
		}
	}
	return nil
}

// secured is the authority of the shared servers with TLS, and their certificate.
var secured struct {
	once      sync.Once
	dir       string // removed with each of them
	authority *Authority
	pair      Pair
	err       error
}

// SharedTLS returns this test process's shared server of that major version (0: the
// default one) that offers TLS but does not require it. Its certificate is for
// localhost and 127.0.0.1; the pair is a copy of it.
func SharedTLS(t testing.TB, major int) (*Server, *Authority, Pair) {
	t.Helper()
	secured.once.Do(func() {
		if secured.dir, secured.err = os.MkdirTemp("", "fencepost-tls-"); secured.err != nil {
			return
		}
		if secured.authority, secured.err = newAuthority(secured.dir); secured.err != nil {
			return
		}
		secured.pair = Pair{CertFile: filepath.Join(secured.dir, "server.crt"), KeyFile: filepath.Join(secured.dir, "server.key")}
		secured.err = secured.authority.issue(secured.pair, Subject{Name: "server", Hosts: []string{"localhost", "127.0.0.1"}})
	})
	if secured.err != nil {
		t.Fatal(secured.err)
	}
	opts := []Option{WithTLS(secured.pair, secured.authority), func(s *Server) { s.more = []string{secured.dir} }}
	if major != 0 {
		opts = append(opts, WithBinaries(Binaries(t, major)))
	}
	return sharedOf(t, securedMajor+major, opts), secured.authority, secured.pair
}

// securedMajor is the offset of the keys of servers with TLS.
const securedMajor = 1000
