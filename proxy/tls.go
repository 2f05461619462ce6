package proxy

import (
	"errors"
	"fmt"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/unixsocket"
)

// tlsFor returns the TLS settings for a client; nil means that it is offered none. As with
// Postgres, they are not about Unix sockets, whose bytes do not leave the host.
func (s *Server) tlsFor(conn netloop.Conn) *pgtls.Clients {
	if conn.RemoteAddr().Network() == unixsocket.Network {
		return nil
	}
	return s.cfg.TLS
}

// admit returns why the settings do not let a client begin a session over conn, or nil if they
// do. tls are those that apply to conn.
func (s *Server) admit(tls *pgtls.Clients, conn link, start *startup) error {
	if start.user == s.cfg.ControlUser {
		return refusals.Control(start.user)
	}
	switch err := tls.Admit(conn, start.user); {
	case errors.Is(err, pgtls.ErrInTheClear):
		return refusals.Plain(conn.RemoteAddr(), start.user, start.database)
	case errors.Is(err, pgtls.ErrNoClientCertificate):
		return &fencing.Refusal{SQLState: "28000", Message: "connection requires a valid client certificate", Verbatim: true}
	case errors.Is(err, pgtls.ErrClientName):
		return &fencing.Refusal{
			SQLState: "28000", Message: fmt.Sprintf("certificate authentication failed for user %q", fencing.ASCII(start.user)),
			Hint:     "The common name of the client's certificate must be the user's name (tls.client_cert in Fencepost's configuration).",
			Verbatim: true,
		}
	default:
		return err
	}
}
