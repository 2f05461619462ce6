package proxy

import (
	"context"
	"errors"
	"net"
	"syscall"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
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

// noDescriptors refuses a client for which the process, or the machine, has no file descriptor left.
var noDescriptors = &fencing.Refusal{
	SQLState: "53000", Message: "Fencepost has no file descriptor left for this connection",
	Hint: "Raise the limit of Fencepost's process (ulimit -n, or LimitNOFILE of systemd), or lower limits.max_connections: each connection needs two.",
}

// noDescriptor reports whether err says that there is no file descriptor left.
func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// startupRefusal returns the refusal of a client whose fence could not be opened, or whose candidacy
// could not be joined, because of err.
func startupRefusal(err error) *fencing.Refusal {
	if noDescriptor(err) {
		return noDescriptors
	}
	return fencing.StartupRefusal(err)
}

// stateNotNow is Postgres's own cannot_connect_now. Of all errors, libpq tries the next host of its
// DSN for this one alone (PQconnectPoll), so a client that names several proxies gets past one that
// cannot reach Postgres.
const stateNotNow = "57P03"

// unreachableRefusal returns the refusal of a client for which dialPrimary failed. The log has the
// whole error.
func unreachableRefusal(err error) *fencing.Refusal {
	var unknown *upstream.NoPrimaryError
	if errors.As(err, &unknown) {
		return unknown.Refusal()
	}
	r := &fencing.Refusal{
		SQLState: stateNotNow, Message: "Fencepost cannot reach Postgres",
		Hint: "See upstream.address in Fencepost's configuration, and its log.",
	}
	const hint = "See upstream.tls in Fencepost's configuration, and its log."
	switch {
	case noDescriptor(err):
		return noDescriptors
	case errors.Is(err, pgtls.ErrUpstreamDeclined):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server does not support SSL", hint
	case errors.Is(err, pgtls.ErrUpstreamCertificate):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server's certificate is not accepted", hint
	case errors.Is(err, pgtls.ErrUpstreamHandshake):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS", hint
	}
	return r
}
