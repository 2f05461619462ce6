package pgtls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/files"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/wire"
)

// Verify says what is asked of the certificate of Postgres.
type Verify uint8

const (
	// VerifyNothing takes any certificate: libpq's sslmode=require.
	VerifyNothing Verify = iota
	// VerifyCA asks for one of a known authority.
	VerifyCA
	// VerifyFull also asks for the server's name in it.
	VerifyFull
)

// UpstreamConfig says how Fencepost speaks TLS with Postgres.
type UpstreamConfig struct {
	Verify Verify
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

// Upstream is the TLS side towards Postgres, of workers' connections and of
// Fencepost's own. Its files are read again when they change. It may be used by
// several goroutines.
type Upstream struct {
	cfg   UpstreamConfig
	files *files.Watched[upstreamFiles]
	tls   *tls.Config
}

type upstreamFiles struct {
	roots *x509.CertPool // nil: the system's
	own   *tls.Certificate
}

// NewUpstream reads the files.
func NewUpstream(cfg UpstreamConfig) (*Upstream, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	switch {
	case (cfg.CertFile == "") != (cfg.KeyFile == ""):
		return nil, errors.New("a certificate for Postgres needs its key, and a key its certificate")
	case cfg.Verify == VerifyFull && cfg.ServerName == "":
		return nil, errors.New("no name to expect in the certificate of Postgres")
	}
	u := &Upstream{cfg: cfg}
	var err error
	if u.files, err = files.Watch(cfg.Logger, "TLS files", u.build, cfg.CAFile, cfg.CertFile, cfg.KeyFile); err != nil {
		return nil, err
	}
	u.tls = u.config()
	return u, nil
}

// Named returns the same side, with the same files, towards a server of another name. It is
// nil if u is.
func (u *Upstream) Named(server string) *Upstream {
	if u == nil {
		return nil
	}
	n := &Upstream{cfg: u.cfg, files: u.files}
	n.cfg.ServerName = server
	n.tls = n.config()
	return n
}

func (u *Upstream) config() *tls.Config {
	return &tls.Config{
		ServerName: u.cfg.ServerName,
		NextProtos: []string{alpn},
		MinVersion: minVersion(u.cfg.MinVersion),
		// verify does it, with the authorities as they stand in the file by then.
		InsecureSkipVerify:          true,
		VerifyConnection:            u.verify,
		GetClientCertificate:        u.certificate,
		DynamicRecordSizingDisabled: true,
	}
}

func (u *Upstream) build(contents [][]byte) (f upstreamFiles, err error) {
	if u.cfg.CAFile != "" {
		if f.roots, err = files.Authorities(u.cfg.CAFile, contents[0]); err != nil {
			return f, err
		}
	}
	if u.cfg.CertFile != "" {
		pair, err := files.KeyPair(u.cfg.CertFile, u.cfg.KeyFile, contents[1], contents[2])
		if err != nil {
			return f, err
		}
		f.own = &pair
	}
	return f, nil
}

// Config is how Fencepost's own connections speak TLS with Postgres, nil where
// u is.
func (u *Upstream) Config() *tls.Config {
	if u == nil {
		return nil
	}
	return u.tls.Clone()
}

// NotAfter is when Fencepost's own certificate expires. It is zero if there is none.
func (u *Upstream) NotAfter() time.Time {
	if u == nil {
		return time.Time{}
	}
	if own := u.files.Get().own; own != nil {
		return own.Leaf.NotAfter
	}
	return time.Time{}
}

// Reload reads the files again if they changed. What is wrong with them is
// logged, and returned.
func (u *Upstream) Reload() error {
	if u == nil {
		return nil
	}
	return u.files.Look()
}

// ErrUpstreamCertificate says that the certificate of Postgres was not accepted.
var ErrUpstreamCertificate = errors.New("the certificate of Postgres is not accepted")

// verify is called in each handshake, when all else was agreed on.
func (u *Upstream) verify(state tls.ConnectionState) error {
	if u.cfg.Verify == VerifyNothing {
		return nil
	}
	opts := x509.VerifyOptions{Roots: u.files.Get().roots, Intermediates: x509.NewCertPool()}
	if u.cfg.Verify == VerifyFull {
		opts.DNSName = u.cfg.ServerName
	}
	for _, cert := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	if _, err := state.PeerCertificates[0].Verify(opts); err != nil {
		return fmt.Errorf("%w: %w", ErrUpstreamCertificate, err)
	}
	return nil
}

// certificate is what Postgres is given when it asks: nothing, if there is none.
func (u *Upstream) certificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	if own := u.files.Get().own; own != nil {
		return own, nil
	}
	return &tls.Certificate{}, nil
}

// ErrUpstreamDeclined says that Postgres declined to speak TLS.
var ErrUpstreamDeclined = errors.New("postgres does not speak TLS")

// ErrUpstreamHandshake says that TLS with Postgres did not come about.
var ErrUpstreamHandshake = errors.New("no TLS with postgres")

// Secure brings TLS to a connection with Postgres. conn's deadline bounds it.
func (u *Upstream) Secure(conn netloop.Conn) (*Conn, error) {
	r := newRecords(conn, nil)
	t, err := u.handshake(conn, r)
	if err != nil {
		return nil, err
	}
	return newConn(t, r, t.ConnectionState().PeerCertificates[0].Raw, longestRecord), nil
}

// handshake asks for TLS on conn, and speaks it over records.
func (u *Upstream) handshake(conn, records net.Conn) (*tls.Conn, error) {
	answer, err := askTLS(conn)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUpstreamHandshake, err)
	case answer == 'N':
		return nil, ErrUpstreamDeclined
	case answer != 'S':
		return nil, fmt.Errorf("%w: it answered %q to the request", ErrUpstreamHandshake, answer)
	}
	t := tls.Client(records, u.tls)
	if err := t.Handshake(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUpstreamHandshake, err)
	}
	return t, nil
}

// tryPlain asks for GSSAPI encryption. A server process that has begun to serve the
// connection answers, with yes or no, and logs nothing if the connection then ends. That
// the connection was accepted proves nothing: the kernel does that for a server that hangs.
func tryPlain(conn net.Conn) error {
	if _, err := conn.Write(wire.AppendGSSRequest(nil)); err != nil {
		return fmt.Errorf("ask postgres: %w", err)
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("postgres does not answer: %w", err)
	}
	return nil
}

// askTLS asks a server whether it speaks TLS, and reads its answer alone: what
// came after it would not be under TLS (CVE-2021-23222).
func askTLS(conn net.Conn) (answer byte, err error) {
	if _, err := conn.Write(wire.AppendSSLRequest(nil)); err != nil {
		return 0, err
	}
	var b [1]byte
	_, err = io.ReadFull(conn, b[:])
	return b[0], err
}

// Try checks that Postgres serves a new connection, without logging in. u is nil where
// there is no TLS with Postgres; otherwise it brings TLS to the connection and ends that.
// conn's deadline bounds it.
func (u *Upstream) Try(conn net.Conn) error {
	if u == nil {
		return tryPlain(conn)
	}
	secured, err := u.handshake(conn, conn)
	if err == nil {
		err = secured.Close()
	}
	return err
}
