package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/fencepost/fencepost/proxy/wire"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
)

// alpn is the protocol's name within TLS. Direct TLS must name it.
const alpn = "postgresql"

// tlsHandshakeByte is the first byte of a TLS connection, and of no startup
// packet that is short enough.
const tlsHandshakeByte = 0x16

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

// ClientTLSConfig says how clients speak TLS.
type ClientTLSConfig struct {
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

// ClientTLS is the TLS side towards clients. Its files are read again when they
// change.
type ClientTLS struct {
	cfg   ClientTLSConfig
	files *watchedFiles[*tls.Config]
}

// NewClientTLS reads the files.
func NewClientTLS(cfg ClientTLSConfig) (*ClientTLS, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	c := &ClientTLS{cfg: cfg}
	switch {
	case cfg.CertFile == "" || cfg.KeyFile == "":
		return nil, errors.New("TLS for clients needs a certificate and its key")
	case cfg.ClientCert != ClientCertOptional && (cfg.ClientCAFile == "" || !cfg.Require):
		return nil, errors.New("clients' certificates can be required only of clients that must use TLS, and with their authority at hand")
	}
	var err error
	c.files, err = watchFiles(cfg.Logger, c.build, cfg.CertFile, cfg.KeyFile, cfg.ClientCAFile)
	return c, err
}

// build makes what handshakes need of the files' contents.
func (c *ClientTLS) build(contents [][]byte) (*tls.Config, error) {
	pair, err := keyPair(c.cfg.CertFile, c.cfg.KeyFile, contents[0], contents[1])
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
		cfg.ClientCAs, err = authorities(c.cfg.ClientCAFile, contents[2])
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
// connection. What is wrong with them is logged.
func (c *ClientTLS) Reload() {
	if c != nil {
		c.files.look()
	}
}

// errHandshake says that a client and Fencepost did not come to TLS. There is no
// way to tell the client more than TLS did.
var errHandshake = errors.New("no TLS with the client")

// accept does the server's part of a handshake on conn. first is what was read of
// the client's part already. conn's deadline bounds it.
func (c *ClientTLS) accept(conn net.Conn, first []byte) (*tlsConn, error) {
	cfg := c.files.get()
	records := &recordConn{Conn: conn, ahead: first}
	t := tls.Server(records, cfg)
	if err := t.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", errHandshake, err)
	}
	return newTLSConn(t, records, cfg.Certificates[0].Certificate[0], maxRecord), nil
}

// admit says whether a client may begin a session over conn.
func (c *ClientTLS) admit(conn net.Conn, start *startup) error {
	if c == nil {
		return nil
	}
	secured, ok := conn.(*tlsConn)
	if !ok {
		if c.cfg.Require {
			return plainRefusal(conn, start)
		}
		return nil
	}
	given := secured.ConnectionState().PeerCertificates
	switch {
	case c.cfg.ClientCert == ClientCertOptional:
		return nil
	case len(given) == 0:
		return &fencing.Refusal{SQLState: "28000", Message: "connection requires a valid client certificate"}
	case c.cfg.ClientCert == ClientCertVerifyFull && !names(given[0], start.user):
		return &fencing.Refusal{
			SQLState: "28000", Message: fmt.Sprintf("certificate authentication failed for user %q", fencing.ASCII(start.user)),
			Hint: "The common name of the client's certificate must be the user's name (tls.client_cert in Fencepost's configuration).",
		}
	}
	return nil
}

func names(cert *x509.Certificate, user string) bool { return cert.Subject.CommonName == user }

// plainRefusal is what Postgres says where only hostssl lines would match.
func plainRefusal(conn net.Conn, start *startup) error {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = conn.RemoteAddr().String()
	}
	return &fencing.Refusal{
		SQLState: "28000",
		Message: fmt.Sprintf("no pg_hba.conf entry for host %q, user %q, database %q, no encryption",
			fencing.ASCII(host), fencing.ASCII(start.user), fencing.ASCII(start.database)),
		Hint: "Fencepost requires TLS here (tls.mode in its configuration): connect with sslmode=require or stricter.",
	}
}

// errBytesAfterSSLRequest is what Postgres says to bytes that came in the clear and would be
// taken for those of the secured connection (CVE-2021-23214).
var errBytesAfterSSLRequest = &fencing.Refusal{
	SQLState: "08P01", Message: "received unencrypted data after SSL request",
	Detail: "This could be either a client-software bug or evidence of an attempted man-in-the-middle attack.",
}

// askTLS asks a server whether it speaks TLS, and reads its answer alone: what
// came behind it would not be under TLS (CVE-2021-23222).
func askTLS(conn net.Conn) (answer byte, err error) {
	if _, err := conn.Write(wire.AppendSSLRequest(nil)); err != nil {
		return 0, err
	}
	var b [1]byte
	_, err = io.ReadFull(conn, b[:])
	return b[0], err
}
