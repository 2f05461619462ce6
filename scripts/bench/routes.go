package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// route is how clients reach a proxy, and the proxy its server.
type route struct {
	name   string
	tls    bool // on both sides
	socket bool // a Unix socket on both sides
	stub   bool // the server only answers logins, so that it bears many connections
}

var routes = []route{
	{name: plain}, {name: "tls", tls: true}, {name: "socket", socket: true},
	{name: "stub", stub: true}, {name: "stub-tls", stub: true, tls: true},
}

// plain is the route over TCP without TLS.
const plain = ""

// routes returns those that the plan's loads take.
func (p *plan) routes() (all []route) {
	for _, r := range routes {
		for _, name := range p.loads {
			if loadNamed(name).over == r.name {
				all = append(all, r)
				break
			}
		}
	}
	return all
}

// named makes a name differ from those of other routes.
func (r route) named(name string) string { return strings.TrimSuffix(name+"-"+r.name, "-") }

// sslmode is what libpq is told.
func (r route) sslmode() string {
	if r.tls {
		return "require"
	}
	return "disable"
}

// place is where a server listens: host is an address, or the directory of a Unix socket.
type place struct{ host, port string }

// address is that of the server as Fencepost's configuration has it.
func (at place) address() string {
	if filepath.IsAbs(at.host) {
		return filepath.Join(at.host, ".s.PGSQL."+at.port)
	}
	return at.host + ":" + at.port
}

// server is where the proxies of a route find their server.
func (s *servers) server(r route) place {
	switch {
	case r.stub:
		return s.stubs[r.name].at
	case r.socket:
		return place{s.dir, s.pgPort}
	default:
		return place{loopback, s.pgPort}
	}
}

// listen is where a proxy of a route may listen.
func (s *servers) listen(r route) (place, error) {
	port, err := freePort()
	if r.socket {
		return place{s.dir, port}, err
	}
	return place{loopback, port}, err
}

func (s *servers) certificate() string { return filepath.Join(s.dir, "server.crt") }
func (s *servers) key() string         { return filepath.Join(s.dir, "server.key") }

// writeCertificate makes the certificate that all servers show. Nobody verifies it.
func (s *servers) writeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	of := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: role}, NotBefore: now, NotAfter: now.AddDate(0, 0, 7)}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	for path, block := range map[string]*pem.Block{s.certificate(): {Type: "CERTIFICATE", Bytes: cert}, s.key(): {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			return err
		}
		if s.user == nil {
			continue
		}
		if err := os.Chown(path, int(s.user.Uid), int(s.user.Gid)); err != nil {
			return err
		}
	}
	return nil
}

// pgbouncerConfig makes the configuration of a PgBouncer in session mode for at most so many clients.
func (s *servers) pgbouncerConfig(r route, at place, users string, clients int) string {
	to := s.server(r)
	text := fmt.Sprintf("[databases]\n%s = host=%s port=%s\n[pgbouncer]\nlisten_port = %s\nauth_type = trust\nauth_file = %s\n"+
		"pool_mode = session\ndefault_pool_size = %d\nmax_client_conn = %d\n", role, to.host, to.port, at.port, users, clients, clients)
	if r.socket {
		text += "unix_socket_dir = " + at.host + "\n"
	} else {
		text += "unix_socket_dir =\nlisten_addr = " + at.host + "\n"
	}
	if r.tls {
		text += fmt.Sprintf("client_tls_sslmode = require\nclient_tls_cert_file = %s\nclient_tls_key_file = %s\nserver_tls_sslmode = require\n", s.certificate(), s.key())
	}
	return text
}

// fencepostConfig makes the configuration of Fencepost for at most so many clients. A worker that connects again to
// fenced, its resource, within a second still has its lease.
func (s *servers) fencepostConfig(r route, at place, admin, fenced string, clients int) string {
	text := fmt.Sprintf("listen: %s\nadmin: %s:%s\nunfenced: allow\nlog:\n  level: warn\nlimits:\n  max_connections: %d\nresources:\n"+
		"  %q:\n    linger: 1s\n", at.address(), loopback, admin, clients, fenced)
	upstream := "upstream:\n  address: " + s.server(r).address() + "\n"
	if r.tls {
		text += fmt.Sprintf("tls:\n  mode: require\n  cert_file: %s\n  key_file: %s\n", s.certificate(), s.key())
		upstream += "  tls:\n    mode: require\n"
	}
	return text + upstream
}

// most returns how many clients a proxy of a route must bear.
func (p *plan) most(r route) int {
	if r.stub {
		return p.connections + 100
	}
	return most - 50
}
