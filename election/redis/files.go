package redis

import (
	"crypto/tls"
	"fmt"
	"net"

	"github.com/fencepost/fencepost/internal/files"
)

// tlsOf returns what makes the configuration of TLS from its files.
func tlsOf(cfg Config) (*files.Watched[*tls.Config], error) {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("election.redis.address: %w", err)
	}
	return cfg.TLSClient.Watch(cfg.Logger, "TLS files of Redis", host)
}
