package pgtls

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/proxy/netloop"
)

// alpn is the protocol's name within TLS. Direct TLS must name it.
const alpn = "postgresql"

// handshakeByte is the first byte of a TLS connection, and of no startup
// packet that is short enough.
const handshakeByte = 0x16

// BeginsTLS reports whether a connection whose first byte is b begins with TLS.
func BeginsTLS(b byte) bool { return b == handshakeByte }

// ClientCert says what is asked of a client's certificate, in the words of
// pg_hba.conf.
type ClientCert uint8

const (
	// ClientCertOptional verifies a certificate that is given. The default.
	ClientCertOptional ClientCert = iota
	// ClientCertVerifyCA refuses clients without one.
	ClientCertVerifyCA
	// ClientCertVerifyFull also asks that its common name be the user's.
	ClientCertVerifyFull
)

// ClientsConfig says how clients speak TLS.
type ClientsConfig struct {
	// CertFile holds the certificate that clients see, and its chain; KeyFile its
	// key. Both PEM.
	CertFile, KeyFile string
	// ClientCAFile holds the authorities of clients' certificates; "": none is
	// asked for.
	ClientCAFile string
	ClientCert   ClientCert
	// Require refuses sessions without TLS. Cancel requests are taken all the
	// same: libpq sends them so.
	Require bool
	// MinVersion is a version of crypto/tls, 0 for TLS 1.2.
	MinVersion uint16
	Logger     *zap.Logger // may be nil
}

// Clients is the TLS side towards clients. Its files are read again when they
// change. It may be used by several goroutines.
type Clients struct {
	cfg   ClientsConfig
	files *files.Watched[*tls.Config]
}

// NewClients reads the files.
func NewClients(cfg ClientsConfig) (*Clients, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	c := &Clients{cfg: cfg}
	switch {
	case cfg.CertFile == "" || cfg.KeyFile == "":
		return nil, errors.New("TLS for clients needs a certificate and its key")
	case cfg.ClientCert != ClientCertOptional && (cfg.ClientCAFile == "" || !cfg.Require):
		return nil, errors.New("clients' certificates can be required only of clients that must use TLS, and with their authority at hand")
	}
	var err error
	c.files, err = files.Watch(cfg.Logger, "TLS files", c.build, cfg.CertFile, cfg.KeyFile, cfg.ClientCAFile)
	return c, err
}

// build makes what handshakes need of the files' contents.
func (c *Clients) build(contents [][]byte) (*tls.Config, error) {
	pair, err := files.KeyPair(c.cfg.CertFile, c.cfg.KeyFile, contents[0], contents[1])
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair},
		NextProtos:   []string{alpn},
		MinVersion:   minVersion(c.cfg.MinVersion),
		// As Postgres: a ticket would outlive the files it was made under.
		SessionTicketsDisabled:      true,
		DynamicRecordSizingDisabled: true,
	}
	if c.cfg.ClientCAFile != "" {
		// Who gives none is refused later, as by Postgres, with words.
		cfg.ClientAuth = tls.VerifyClientCertIfGiven
		cfg.ClientCAs, err = files.Authorities(c.cfg.ClientCAFile, contents[2])
	}
	return cfg, err
}

func minVersion(v uint16) uint16 {
	if v == 0 {
		return tls.VersionTLS12
	}
	return v
}

// Reload reads the files again if they changed, without waiting for the next
// connection. What is wrong with them is logged, and returned.
func (c *Clients) Reload() error {
	if c == nil {
		return nil
	}
	return c.files.Look()
}

// NotAfter is when the certificate that clients see expires.
func (c *Clients) NotAfter() time.Time { return c.files.Get().Certificates[0].Leaf.NotAfter }

// Config returns a configuration for servers that speak another protocol, by its name within
// TLS, with the same files. It requests what c.Admit would need, but requires nothing.
func (c *Clients) Config(protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: minVersion(c.cfg.MinVersion),
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cfg := c.files.Get().Clone()
			cfg.NextProtos = []string{protocol}
			return cfg, nil
		},
	}
}

// ErrClientHandshake says that a client and Fencepost did not come to TLS. There
// is no way to send the client more than TLS did.
var ErrClientHandshake = errors.New("no TLS with the client")

// Accept does the server's part of a handshake on conn, after an SSLRequest of
// the client's. conn's deadline bounds it.
func (c *Clients) Accept(conn netloop.Conn) (*Conn, error) { return c.handshake(conn, nil) }

// AcceptDirect is Accept for a client that sent no request, as PostgreSQL 17
// allows: it must name the protocol then. first is what was read of its part
// already. A nil c refuses.
func (c *Clients) AcceptDirect(conn netloop.Conn, first []byte) (*Conn, error) {
	if c == nil {
		return nil, fmt.Errorf("%w: it came without a request, and TLS is off", ErrClientHandshake)
	}
	secured, err := c.handshake(conn, first)
	if err != nil {
		return nil, err
	}
	if secured.ConnectionState().NegotiatedProtocol != alpn {
		_ = secured.Close()
		return nil, fmt.Errorf("%w: it came without a request, and did not name the protocol (ALPN)", ErrClientHandshake)
	}
	return secured, nil
}

func (c *Clients) handshake(conn netloop.Conn, first []byte) (*Conn, error) {
	cfg := c.files.Get()
	r := newRecords(conn, first)
	t := tls.Server(r, cfg)
	if err := t.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrClientHandshake, err)
	}
	return newConn(t, r, cfg.Certificates[0].Certificate[0], maxRecord), nil
}

// What a client lacks whose session is not admitted.
var (
	ErrInTheClear          = errors.New("the session must be under TLS")
	ErrNoClientCertificate = errors.New("the client gave no certificate")
	ErrClientName          = errors.New("the client's certificate bears another name")
)

// Admit says whether a user may begin a session over conn: ErrInTheClear,
// ErrNoClientCertificate and ErrClientName say why not. A nil c asks for nothing.
func (c *Clients) Admit(conn net.Conn, user string) error {
	if c == nil {
		return nil
	}
	secured, ok := conn.(*Conn)
	if !ok {
		if c.cfg.Require {
			return ErrInTheClear
		}
		return nil
	}
	given := secured.ConnectionState().PeerCertificates
	switch {
	case c.cfg.ClientCert == ClientCertOptional:
		return nil
	case len(given) == 0:
		return ErrNoClientCertificate
	case c.cfg.ClientCert == ClientCertVerifyFull && given[0].Subject.CommonName != user:
		return ErrClientName
	}
	return nil
}
