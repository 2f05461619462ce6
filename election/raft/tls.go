package raft

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/files"
)

// requestProtocol is what requests are made by: HTTP/2.
const requestProtocol = "h2"

// raftProtocol is what the node with this directory is spoken to by the other nodes of its cluster.
func raftProtocol(cluster, disk string) string { return "fencepost-raft/1/" + cluster + "/" + disk }

// security is mutual TLS with the files as they are at the time of each handshake.
type security struct {
	files *files.Watched[credentials]
	// serverName is what the certificates of nodes are for; "" if that is the host of their address.
	serverName string
}

type credentials struct {
	roots *x509.CertPool
	pair  tls.Certificate
}

func newSecurity(cfg Config, log *zap.Logger) (*security, error) {
	if cfg.CAFile == "" || cfg.CertFile == "" || cfg.KeyFile == "" {
		return nil, errors.New("ca_file, cert_file and key_file are all needed: nodes know each other by their certificates")
	}
	build := func(contents [][]byte) (c credentials, err error) {
		if c.roots, err = files.Authorities(cfg.CAFile, contents[0]); err != nil {
			return c, err
		}
		c.pair, err = files.KeyPair(cfg.CertFile, cfg.KeyFile, contents[1], contents[2])
		return c, err
	}
	watched, err := files.Watch(log, "TLS files of raft", build, cfg.CAFile, cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file, cert_file or key_file: %w", err)
	}
	return &security{watched, cfg.ServerName}, nil
}

// server returns the configuration of a listener that speaks these protocols.
func (s *security) server(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := s.files.Get()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: protocols, Certificates: []tls.Certificate{c.pair},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: c.roots,
			}, nil
		},
	}
}

// dial connects to a node, and speaks this protocol.
func (s *security) dial(ctx context.Context, address, protocol string) (*tls.Conn, error) {
	name := s.serverName
	if name == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		name = host
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := s.files.Get()
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, ServerName: name, RootCAs: c.roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.pair, nil },
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", address, err), raw.Close())
	}
	return conn, nil
}
