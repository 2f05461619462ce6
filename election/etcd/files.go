package etcd

import (
	"context"
	"crypto/tls"
	"net"

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
	config, err := cfg.TLSClient.Watch(cfg.Logger, "TLS files of etcd", "") // gRPC wants the name here too
	if err != nil {
		return nil, err
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
