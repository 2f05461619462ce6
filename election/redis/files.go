package redis

import (
	"crypto/tls"
	"fmt"
	"net"

	"github.com/fencepost/fencepost/internal/files"
)

// tlsOf returns what makes the configuration of TLS from its files.
func tlsOf(cfg Config) (*files.Watched[*tls.Config], error) {
	name := cfg.ServerName
	if name == "" {
		host, _, err := net.SplitHostPort(cfg.Address)
		if err != nil {
			return nil, fmt.Errorf("election.redis.address: %w", err)
		}
		name = host
	}
	return files.ClientTLS(cfg.Logger, "TLS files of Redis", name, cfg.CAFile, cfg.CertFile, cfg.KeyFile)
}
