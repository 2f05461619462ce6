package proxy

import (
	"context"
	"errors"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/proxy/console"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/startup"
)

// console serves a client that has asked for the console. It must have logged in by until.
func (s *Server) console(ctx context.Context, client link, start *startup.Request, until time.Time) {
	x := s.cfg.Console.Open(client, console.Client{
		User: start.User, Application: start.ApplicationName(), Version: start.Version, Options: start.ProtocolOptions(),
	})
	err := s.allowReadsUntil(client, until)
	if err == nil {
		err = s.explainTimeout(x.Login(), refusals.ShuttingDown, refusals.Protocol("the answer to the authentication request did not arrive in time"))
	}
	if err == nil {
		err = s.allowReadsUntil(client, time.Time{})
	}
	if err != nil {
		s.turnAway(client, start, err)
		linger(client)
		return
	}
	asked := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		a := s.mu.conns[socketBelow(client)]
		a.console, a.lastSent = start, time.Now()
		s.mu.conns[socketBelow(client)] = a
	}
	asked()
	logs := func(what string, fields ...zap.Field) {
		if s.cfg.LogConnections() {
			s.cfg.Logger.Info(what, append(fields, zap.String("database", start.Database), zap.String("user", start.User), zap.Stringer("client", client.RemoteAddr()),
				zap.String("application_name", start.ApplicationName()), zap.String("role", "console"))...)
		}
	}
	logs("client connected")
	err = x.Serve(ctx, asked)
	refusals.Send(client, s.explainTimeout(err, refusals.AdminShutdown, nil))
	linger(client)
	logs("client disconnected", zap.Duration("duration", time.Since(start.Began)), zap.NamedError("error", err))
}

// allowReadsUntil sets the read deadline of a client that has no session; zero means none. It returns
// refusals.ShuttingDown if the proxy drains, which ends such reads.
func (s *Server) allowReadsUntil(client link, then time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.draining {
		return refusals.ShuttingDown
	}
	return client.SetReadDeadline(then)
}

// explainTimeout returns draining for a timeout while the proxy drains, which ends reads that way, late for any other
// timeout, and otherwise err.
func (s *Server) explainTimeout(err, draining, late error) error {
	var timeout net.Error
	switch {
	case !errors.As(err, &timeout) || !timeout.Timeout():
		return err
	case s.isDraining():
		return draining
	}
	return late
}
