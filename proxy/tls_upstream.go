package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
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
func (u *UpstreamTLS) secure(conn net.Conn) (net.Conn, error) {
	answer, err := askTLS(conn)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errUpstreamTLS, err)
	case answer == 'N':
		return nil, errNoTLS
	case answer != 'S':
		return nil, fmt.Errorf("%w: it answered %q to the request", errUpstreamTLS, answer)
	}
	records := &recordConn{Conn: conn}
	t := tls.Client(records, u.tls)
	if err := t.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", errUpstreamTLS, err)
	}
	return newTLSConn(t, records, t.ConnectionState().PeerCertificates[0].Raw, 0), nil
}

// Try brings TLS to a connection with Postgres and says goodbye: for who asks
// whether it would work. conn's deadline bounds it.
func (u *UpstreamTLS) Try(conn net.Conn) error {
	secured, err := u.secure(conn)
	if err == nil {
		err = secured.Close()
	}
	return err
}

// dial connects to Postgres, under TLS where that is configured. l, if it is not
// nil, will tell when the connection can be read.
func (s *Server) dial(ctx context.Context, l *loop) (net.Conn, error) {
	deadline := time.Now().Add(s.cfg.DialTimeout)
	network := "tcp"
	if strings.HasPrefix(s.cfg.Upstream, "/") {
		network = "unix"
	}
	d := net.Dialer{Deadline: deadline}
	conn, err := d.DialContext(ctx, network, s.cfg.Upstream)
	if err == nil {
		conn, err = l.adopt(conn)
	}
	if err != nil || s.cfg.UpstreamTLS == nil {
		return conn, err
	}
	_ = conn.SetDeadline(deadline)
	wake := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(aLongTimeAgo) })
	secured, err := s.cfg.UpstreamTLS.secure(conn)
	if !wake() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return secured, nil
}

// unreachable is what a client is told when dial failed. The log has the whole.
func unreachable(err error) *fencing.Refusal {
	r := &fencing.Refusal{
		SQLState: "08006", Message: "Fencepost cannot reach Postgres",
		Hint: "See upstream.address in Fencepost's configuration, and its log.",
	}
	const hint = "See upstream.tls in Fencepost's configuration, and its log."
	switch {
	case errors.Is(err, errNoTLS):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server does not support SSL", hint
	case errors.Is(err, errCertificate):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server's certificate is not accepted", hint
	case errors.Is(err, errUpstreamTLS):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS", hint
	}
	return r
}
