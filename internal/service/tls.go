package service

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/service/hosts"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

var clientCerts = map[string]pgtls.ClientCert{
	"optional":    pgtls.ClientCertOptional,
	"verify-ca":   pgtls.ClientCertVerifyCA,
	"verify-full": pgtls.ClientCertVerifyFull,
}

// newSides builds the TLS configuration of each listening side, and the upstream.
func (s *Server) newSides(cfg config.Config) (err error) {
	if s.tls, err = newClientTLS(cfg, s.log); err != nil {
		return err
	}
	if s.adminTLS, err = newAdminTLS(cfg, s.log); err != nil {
		return err
	}
	s.upstream, err = hosts.New(cfg, s.log)
	return err
}

// certificates returns when the certificates that are in use expire, by the settings they are from.
func (s *Server) certificates() map[string]time.Time {
	all := map[string]time.Time{}
	if s.tls != nil {
		all["tls"] = s.tls.NotAfter()
	}
	if s.adminTLS != nil {
		all["admin.tls"] = s.adminTLS.NotAfter()
	}
	if at := s.upstream.NotAfter(); !at.IsZero() {
		all["upstream.tls"] = at
	}
	return all
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
		MinVersion: config.TLSVersions[c.MinVersion], Logger: log.Named("tls"),
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
