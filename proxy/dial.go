package proxy

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// dial connects to Postgres, under TLS if that is configured. The event loop l reports when
// the connection is ready to be read or written.
func (s *Server) dial(ctx context.Context, l netloop.Loop) (link, error) {
	deadline := time.Now().Add(s.cfg.DialTimeout)
	network := "tcp"
	if strings.HasPrefix(s.cfg.Upstream, "/") {
		network = "unix"
	}
	d := net.Dialer{Deadline: deadline}
	dialled, err := d.DialContext(ctx, network, s.cfg.Upstream)
	if err != nil {
		return nil, err
	}
	conn, err := l.Adopt(dialled)
	if err != nil {
		return nil, err
	}
	if s.cfg.UpstreamTLS == nil {
		return conn, nil
	}
	_ = conn.SetDeadline(deadline)
	wake := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(aLongTimeAgo) })
	secured, err := s.cfg.UpstreamTLS.Secure(conn)
	if !wake() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	return secured, nil
}

// unreachable returns the refusal of a client for which dial failed. The log has the whole
// error.
func unreachable(err error) *fencing.Refusal {
	r := &fencing.Refusal{
		SQLState: "08006", Message: "Fencepost cannot reach Postgres",
		Hint: "See upstream.address in Fencepost's configuration, and its log.",
	}
	const hint = "See upstream.tls in Fencepost's configuration, and its log."
	switch {
	case errors.Is(err, pgtls.ErrUpstreamDeclined):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server does not support SSL", hint
	case errors.Is(err, pgtls.ErrUpstreamCertificate):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server's certificate is not accepted", hint
	case errors.Is(err, pgtls.ErrUpstreamHandshake):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS", hint
	}
	return r
}
