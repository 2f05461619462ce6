package files

import (
	"cmp"
	"crypto/tls"
	"fmt"

	"go.uber.org/zap"
)

// TLSClient says how a client verifies a server, and how it proves who it is itself. Each field may be "".
type TLSClient struct {
	CAFile     string `yaml:"ca_file"` // the authorities of the server's certificate, PEM; "": those of the system
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	ServerName string `yaml:"server_name"` // of the server's certificate; "": the host that was dialed
}

// IsSet reports whether there is any setting.
func (c TLSClient) IsSet() bool { return c != TLSClient{} }

// Watch makes a configuration of the files, again when they change. what names them in the log, and host is the name in
// the server's certificate if there is no ServerName; "" is for what sets ServerName in a copy of the configuration.
func (c TLSClient) Watch(log *zap.Logger, what, host string) (*Watched[*tls.Config], error) {
	build := func(contents [][]byte) (*tls.Config, error) {
		config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cmp.Or(c.ServerName, host)}
		if c.CAFile != "" {
			roots, err := Authorities(c.CAFile, contents[0])
			if err != nil {
				return nil, err
			}
			config.RootCAs = roots
		}
		if c.CertFile != "" {
			pair, err := KeyPair(c.CertFile, c.KeyFile, contents[1], contents[2])
			if err != nil {
				return nil, err
			}
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return config, nil
	}
	config, err := Watch(log, what, build, c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file, cert_file or key_file: %w", err)
	}
	return config, nil
}
