package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/proxy/wire"
)

// UpstreamVerify says what is asked of the certificate of Postgres.
type UpstreamVerify uint8

const (
	// VerifyNothing takes any certificate: libpq's sslmode=require.
	VerifyNothing UpstreamVerify = iota
	// VerifyCA asks for one of a known authority.
	VerifyCA
	// VerifyFull also asks for the server's name in it.
	VerifyFull
)

// UpstreamTLSConfig says how Fencepost speaks TLS with Postgres.
type UpstreamTLSConfig struct {
	Verify UpstreamVerify
	// CAFile holds the authorities of the server's certificate, PEM; "": those of
	// the system.
	CAFile string
	// CertFile and KeyFile are Fencepost's own certificate, if it has one.
	CertFile, KeyFile string
	// ServerName is the host's name, to be sent and, with VerifyFull, expected.
	ServerName string
	// MinVersion is a version of crypto/tls, 0 for TLS 1.2.
	MinVersion uint16
	Logger     *zap.Logger // may be nil
}

// UpstreamTLS is the TLS side towards Postgres, of workers' connections and of
// Fencepost's own. Its files are read again when they change.
type UpstreamTLS struct {
	cfg   UpstreamTLSConfig
	files *watchedFiles[upstreamFiles]
	tls   *tls.Config
}

type upstreamFiles struct {
	roots *x509.CertPool // nil: the system's
	own   *tls.Certificate
}

// NewUpstreamTLS reads the files.
func NewUpstreamTLS(cfg UpstreamTLSConfig) (*UpstreamTLS, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	switch {
	case (cfg.CertFile == "") != (cfg.KeyFile == ""):
		return nil, errors.New("a certificate for Postgres needs its key, and a key its certificate")
	case cfg.Verify == VerifyFull && cfg.ServerName == "":
		return nil, errors.New("no name to expect in the certificate of Postgres")
	}
	u := &UpstreamTLS{cfg: cfg}
	var err error
	if u.files, err = watchFiles(cfg.Logger, u.build, cfg.CAFile, cfg.CertFile, cfg.KeyFile); err != nil {
		return nil, err
	}
	u.tls = &tls.Config{
		ServerName: cfg.ServerName,
		NextProtos: []string{alpn},
		MinVersion: minVersion(cfg.MinVersion),
		// verify does it, with the authorities as they stand in the file by then.
		InsecureSkipVerify:          true,
		VerifyConnection:            u.verify,
		GetClientCertificate:        u.certificate,
		DynamicRecordSizingDisabled: true,
	}
	return u, nil
}

func (u *UpstreamTLS) build(contents [][]byte) (f upstreamFiles, err error) {
	if u.cfg.CAFile != "" {
		if f.roots, err = authorities(u.cfg.CAFile, contents[0]); err != nil {
			return f, err
		}
	}
	if u.cfg.CertFile != "" {
		pair, err := keyPair(u.cfg.CertFile, u.cfg.KeyFile, contents[1], contents[2])
		if err != nil {
			return f, err
		}
		f.own = &pair
	}
	return f, nil
}

// Config is how Fencepost's own connections speak TLS with Postgres, nil where
// u is.
func (u *UpstreamTLS) Config() *tls.Config {
	if u == nil {
		return nil
	}
	return u.tls.Clone()
}

// Reload reads the files again if they changed. What is wrong with them is
// logged.
func (u *UpstreamTLS) Reload() {
	if u != nil {
		u.files.look()
	}
}

// errCertificate says that the certificate of Postgres was not accepted.
var errCertificate = errors.New("the certificate of Postgres is not accepted")

// verify is called in each handshake, when all else was agreed on.
func (u *UpstreamTLS) verify(state tls.ConnectionState) error {
	if u.cfg.Verify == VerifyNothing {
		return nil
	}
	opts := x509.VerifyOptions{Roots: u.files.get().roots, Intermediates: x509.NewCertPool()}
	if u.cfg.Verify == VerifyFull {
		opts.DNSName = u.cfg.ServerName
	}
	for _, cert := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := state.PeerCertificates[0].Verify(opts); err != nil {
		return fmt.Errorf("%w: %w", errCertificate, err)
	}
	return nil
}

// certificate is what Postgres is given when it asks: nothing, if there is none.
func (u *UpstreamTLS) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if own := u.files.get().own; own != nil {
		return own, nil
	}
	return &tls.Certificate{}, nil
}

// errNoTLS says that Postgres declined to speak TLS.
var errNoTLS = errors.New("postgres does not speak TLS")

// errUpstreamTLS says that TLS with Postgres did not come about.
var errUpstreamTLS = errors.New("no TLS with postgres")

// secure brings TLS to a connection with Postgres. conn's deadline bounds it.
func (u *UpstreamTLS) secure(conn link) (*tlsConn, error) {
	records := &recordConn{link: conn}
	t, err := u.handshake(conn, records)
	if err != nil {
		return nil, err
	}
	return newTLSConn(t, records, t.ConnectionState().PeerCertificates[0].Raw, 0), nil
}

// handshake asks for TLS on conn, and speaks it over records.
func (u *UpstreamTLS) handshake(conn, records net.Conn) (*tls.Conn, error) {
	answer, err := askTLS(conn)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errUpstreamTLS, err)
	case answer == 'N':
		return nil, errNoTLS
	case answer != 'S':
		return nil, fmt.Errorf("%w: it answered %q to the request", errUpstreamTLS, answer)
	}
	t := tls.Client(records, u.tls)
	if err := t.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUpstreamTLS, err)
	}
	return t, nil
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

// Try brings TLS to a connection with Postgres and says goodbye: for who asks
// whether it would work. conn's deadline bounds it.
func (u *UpstreamTLS) Try(conn net.Conn) error {
	secured, err := u.handshake(conn, conn)
	if err == nil {
		err = secured.Close()
	}
	return err
}
