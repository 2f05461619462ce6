package proxy

import (
	"context"
	"net"
	"time"

	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/upstream"
)

// dialPrimary connects to the primary.
func (s *Server) dialPrimary(ctx context.Context, l netloop.Loop) (link, upstream.Primary, error) {
	primary, err := s.cfg.Upstream.Primary(ctx)
	if err != nil {
		return nil, primary, err
	}
	conn, err := s.dial(ctx, primary.Host, l)
	return conn, primary, err
}

// dial connects to a server, under TLS if that is configured. The event loop l reports when
// the connection is ready to be read or written.
func (s *Server) dial(ctx context.Context, to upstream.Host, l netloop.Loop) (link, error) {
	deadline := time.Now().Add(s.cfg.DialTimeout)
	d := net.Dialer{Deadline: deadline}
	dialled, err := d.DialContext(ctx, to.Network(), to.Address)
	if err != nil {
		return nil, err
	}
	conn, err := l.Adopt(dialled)
	if err != nil {
		_ = dialled.Close()
		return nil, err
	}
	if to.TLS == nil {
		return conn, nil
	}
	_ = conn.SetDeadline(deadline)
	wake := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(aLongTimeAgo) })
	secured, err := to.TLS.Secure(conn)
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
