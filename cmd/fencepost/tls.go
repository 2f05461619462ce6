package main

import (
	"crypto/tls"
	"fmt"
	"net"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/cmd/fencepost/config"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

var tlsVersions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

var clientCerts = map[string]pgtls.ClientCert{
	"optional":    pgtls.ClientCertOptional,
	"verify-ca":   pgtls.ClientCertVerifyCA,
	"verify-full": pgtls.ClientCertVerifyFull,
}

var upstreamVerifies = map[string]pgtls.Verify{
	"require":     pgtls.VerifyNothing,
	"verify-ca":   pgtls.VerifyCA,
	"verify-full": pgtls.VerifyFull,
}

// readCertificates builds the TLS configuration of each side.
func (s *serving) readCertificates(cfg config.Config) (err error) {
	if s.tls, err = newClientTLS(cfg, s.log); err != nil {
		return err
	}
	if s.adminTLS, err = newAdminTLS(cfg, s.log); err != nil {
		return err
	}
	s.upstream, err = newUpstreamTLS(cfg, s.log)
	return err
}

// newClientTLS builds the TLS configuration for clients; nil if disabled.
func newClientTLS(cfg config.Config, log *zap.Logger) (*pgtls.Clients, error) {
	c := cfg.TLS
	if !c.Enabled() {
		return nil, nil
	}
	side, err := pgtls.NewClients(pgtls.ClientsConfig{
		CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile,
		ClientCert: clientCerts[c.ClientCert], Require: c.Mode == "require",
		MinVersion: tlsVersions[c.MinVersion], Logger: log.Named("tls"),
	})
	if err != nil {
		return nil, fmt.Errorf("settings tls: %w", err)
	}
	return side, nil
}

// newAdminTLS builds the TLS configuration of the admin address; nil if it has none.
func newAdminTLS(cfg config.Config, log *zap.Logger) (*pgtls.Clients, error) {
	c := cfg.Admin.TLS
	if !c.Enabled() {
		return nil, nil
	}
	side, err := pgtls.NewClients(pgtls.ClientsConfig{
		CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile, Logger: log.Named("tls"),
	})
	if err != nil {
		return nil, fmt.Errorf("settings admin.tls: %w", err)
	}
	return side, nil
}

// newUpstreamTLS builds the TLS configuration for Postgres; nil if disabled.
func newUpstreamTLS(cfg config.Config, log *zap.Logger) (*pgtls.Upstream, error) {
	c := cfg.Upstream.TLS
	if !c.Enabled() {
		return nil, nil
	}
	name := c.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(string(cfg.Upstream.Address))
		if err != nil {
			return nil, fmt.Errorf("read upstream.address: %w", err)
		}
		name = host
	}
	side, err := pgtls.NewUpstream(pgtls.UpstreamConfig{
		Verify: upstreamVerifies[c.Mode], CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		ServerName: name, MinVersion: tlsVersions[c.MinVersion], Logger: log.Named("tls"),
	})
	if err != nil {
		return nil, fmt.Errorf("settings upstream.tls: %w", err)
	}
	return side, nil
}
