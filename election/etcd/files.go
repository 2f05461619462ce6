package etcd

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/fencepost/fencepost/internal/files"
)

// security is TLS with the files as they are at the time of each handshake. gRPC would keep the
// authorities of the first one.
type security struct {
	credentials.TransportCredentials
	config *files.Watched[*tls.Config]
}

func newSecurity(cfg Config) (credentials.TransportCredentials, error) {
	build := func(contents [][]byte) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName} // gRPC wants the name here too
		if cfg.CAFile != "" {
			roots, err := files.Authorities(cfg.CAFile, contents[0])
			if err != nil {
				return nil, err
			}
			c.RootCAs = roots
		}
		if cfg.CertFile != "" {
			pair, err := files.KeyPair(cfg.CertFile, cfg.KeyFile, contents[1], contents[2])
			if err != nil {
				return nil, err
			}
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return c, nil
	}
	config, err := files.Watch(cfg.Logger, "TLS files of etcd", build, cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file, cert_file or key_file: %w", err)
	}
	return &security{credentials.NewTLS(config.Get()), config}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (s *security) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(s.config.Get()).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (s *security) Clone() credentials.TransportCredentials {
	return &security{s.TransportCredentials.Clone(), s.config}
}

// passwordOf returns what reads the password.
func passwordOf(cfg Config) (func() string, error) {
	if cfg.PasswordFile == "" {
		return func() string { return cfg.Password }, nil
	}
	build := func(contents [][]byte) (string, error) {
		password := strings.TrimSpace(string(contents[0]))
		if password == "" {
			return "", fmt.Errorf("%s is empty: write the password into it", cfg.PasswordFile)
		}
		return password, nil
	}
	password, err := files.Watch(cfg.Logger, "password_file of etcd", build, cfg.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("election.etcd.password_file: %w", err)
	}
	return password.Get, nil
}
