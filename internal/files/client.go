package files

import (
	"crypto/tls"
	"fmt"

	"go.uber.org/zap"
)

// ClientTLS watches the files with which a client verifies a server, whose certificate must have this name, and shows
// who it is itself. A path may be "": the authorities are then those of the system, and the client has no certificate.
// An empty name is for what sets ServerName in a copy of the configuration.
func ClientTLS(log *zap.Logger, what, name, caFile, certFile, keyFile string) (*Watched[*tls.Config], error) {
	build := func(contents [][]byte) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name}
		if caFile != "" {
			roots, err := Authorities(caFile, contents[0])
			if err != nil {
				return nil, err
			}
			c.RootCAs = roots
		}
		if certFile != "" {
			pair, err := KeyPair(certFile, keyFile, contents[1], contents[2])
			if err != nil {
				return nil, err
			}
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
		}
		return c, nil
	}
	config, err := Watch(log, what, build, caFile, certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("ca_file, cert_file or key_file: %w", err)
	}
	return config, nil
}
