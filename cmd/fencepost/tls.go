package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/proxy/pgtls"
)

// TLSConfig configures TLS for clients.
type TLSConfig struct {
	Mode         string `yaml:"mode"` // "disable", "allow" or "require"
	CertFile     string `yaml:"cert_file"`
	KeyFile      string `yaml:"key_file"`
	ClientCAFile string `yaml:"client_ca_file"`
	ClientCert   string `yaml:"client_cert"` // "optional", "verify-ca" or "verify-full"
	MinVersion   string `yaml:"min_version"` // "1.2" or "1.3"
}

// UpstreamTLSConfig configures TLS to Postgres, for workers' connections and for
// Fencepost's own.
type UpstreamTLSConfig struct {
	Mode       string `yaml:"mode"` // "disable", "require", "verify-ca" or "verify-full"
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"`
	MinVersion string `yaml:"min_version"` // "1.2" or "1.3"
}

// noTLS is the mode that disables TLS, on either side.
const noTLS = "disable"

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

func (c *TLSConfig) validate(fault faultf) {
	checkWord(fault, "tls.mode", c.Mode, noTLS, "allow", "require")
	checkWord(fault, "tls.client_cert", c.ClientCert, "optional", "verify-ca", "verify-full")
	checkWord(fault, "tls.min_version", c.MinVersion, "1.2", "1.3")
	files := c.CertFile != "" || c.KeyFile != "" || c.ClientCAFile != ""
	asks := c.ClientCert == "verify-ca" || c.ClientCert == "verify-full"
	switch {
	case c.Mode == noTLS && (files || asks):
		fault("tls has settings, but tls.mode is disable: set mode: allow or mode: require, or remove them")
	case c.Mode == noTLS:
	case c.CertFile == "" || c.KeyFile == "":
		fault("tls.mode is %s: set tls.cert_file and tls.key_file, the certificate for clients", c.Mode)
	case asks && c.ClientCAFile == "":
		fault("tls.client_cert is %s: set tls.client_ca_file, the authority of clients' certificates", c.ClientCert)
	case asks && c.Mode != "require":
		fault("tls.client_cert is %s, but tls.mode is %s: set mode: require, or clients without TLS need no certificate", c.ClientCert, c.Mode)
	}
}

func (c *UpstreamTLSConfig) validate(fault faultf) {
	checkWord(fault, "upstream.tls.mode", c.Mode, noTLS, "require", "verify-ca", "verify-full")
	checkWord(fault, "upstream.tls.min_version", c.MinVersion, "1.2", "1.3")
	settings := c.CAFile != "" || c.CertFile != "" || c.KeyFile != "" || c.ServerName != ""
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("upstream.tls.cert_file and key_file belong together: set both or neither")
	}
	switch {
	case c.Mode == noTLS && settings:
		fault("upstream.tls has settings, but upstream.tls.mode is disable: set mode: verify-full, or remove them")
	case c.Mode == "require" && c.CAFile != "":
		fault("upstream.tls.mode require accepts any certificate, but ca_file is set: set mode: verify-ca or verify-full, or remove it")
	case c.Mode == "verify-ca" && c.CAFile == "":
		fault("upstream.tls.mode is verify-ca: set upstream.tls.ca_file, or any name under the system's authorities would be accepted")
	}
}

// newClientTLS builds the TLS configuration for clients; nil if disabled.
func newClientTLS(cfg Config, log *zap.Logger) (*pgtls.Clients, error) {
	c := cfg.TLS
	if c.Mode == noTLS {
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

// newUpstreamTLS builds the TLS configuration for Postgres; nil if disabled.
func newUpstreamTLS(cfg Config, log *zap.Logger) (*pgtls.Upstream, error) {
	c := cfg.Upstream.TLS
	if c.Mode == noTLS {
		return nil, nil
	}
	name := c.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(cfg.Upstream.Address)
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

// reloads reloads the TLS files at each SIGHUP, until ctx ends. They are also checked
// periodically; the signal reloads them at once.
func (s *serving) reloads(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-hangups:
			s.tls.Reload()
			s.upstream.Reload()
		case <-ctx.Done():
			return
		}
	}
}
