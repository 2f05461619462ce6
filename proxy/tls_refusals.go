package proxy

import (
	"errors"
	"fmt"
	"net"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// admit says whether a client may begin a session over conn, as far as TLS is
// concerned.
func (s *Server) admit(conn link, start *startup) error {
	switch err := s.cfg.TLS.Admit(conn, start.user); {
	case errors.Is(err, pgtls.ErrInTheClear):
		return plainRefusal(conn, start)
	case errors.Is(err, pgtls.ErrNoClientCertificate):
		return &fencing.Refusal{SQLState: "28000", Message: "connection requires a valid client certificate"}
	case errors.Is(err, pgtls.ErrClientName):
		return &fencing.Refusal{
			SQLState: "28000", Message: fmt.Sprintf("certificate authentication failed for user %q", fencing.ASCII(start.user)),
			Hint: "The common name of the client's certificate must be the user's name (tls.client_cert in Fencepost's configuration).",
		}
	default:
		return err
	}
}

// plainRefusal is what Postgres says where only hostssl lines would match.
func plainRefusal(conn net.Conn, start *startup) error {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = conn.RemoteAddr().String()
	}
	return &fencing.Refusal{
		SQLState: "28000",
		Message: fmt.Sprintf("no pg_hba.conf entry for host %q, user %q, database %q, no encryption",
			fencing.ASCII(host), fencing.ASCII(start.user), fencing.ASCII(start.database)),
		Hint: "Fencepost requires TLS here (tls.mode in its configuration): connect with sslmode=require or stricter.",
	}
}

// unboundRefusal is what the server would say of a client that misses channel
// binding, and what can be done.
var unboundRefusal = &fencing.Refusal{
	SQLState: "08P01", Message: "SCRAM channel binding negotiation error",
	Detail: "The client supports SCRAM channel binding, and so does the server, but Fencepost stands between them with a certificate of its own.",
	Hint:   "Connect with channel_binding=disable, or give Fencepost the server's own certificate (tls.cert_file in its configuration).",
}
