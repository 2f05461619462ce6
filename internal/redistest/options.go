package redistest

import (
	"crypto/tls"
	"fmt"
)

// Option changes how a server is started.
type Option func(*options)

type options struct {
	args     []string
	password string
	tls      *tls.Config
	clock    bool
	sentinel bool
}

// With adds settings, as in redis.conf: "maxmemory-policy", "allkeys-lru".
func With(settings ...string) Option {
	return func(o *options) {
		for i := 0; i+1 < len(settings); i += 2 {
			o.args = append(o.args, "--"+settings[i], settings[i+1])
		}
	}
}

// WithReplicaOf starts a replica of another server.
func WithReplicaOf(master *Server) Option {
	return With("replicaof", fmt.Sprint("127.0.0.1 ", master.port.Number))
}

// WithPassword gives the user default, who is the operator, a password.
func WithPassword(password string) Option {
	return func(o *options) { o.password = password }
}

// WithTLS makes the server serve clients over TLS with that certificate, and demand a certificate
// of the authority in caFile from them. operator is how the operator connects.
func WithTLS(caFile, certFile, keyFile string, operator *tls.Config) Option {
	return func(o *options) {
		o.tls = operator
		With("tls-ca-cert-file", caFile, "tls-cert-file", certFile, "tls-key-file", keyFile)(o)
	}
}

// AsSentinel starts a Sentinel, which watches nothing.
func AsSentinel() Option { return func(o *options) { o.sentinel = true } }

// WithClock starts a server whose wall clock SetClock can set.
func WithClock() Option { return func(o *options) { o.clock = true } }
