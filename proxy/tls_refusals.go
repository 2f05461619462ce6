package proxy

import (
	"errors"
	"fmt"
	"net"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
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
		return controlRefusal(start.user)
	}
	switch err := tls.Admit(conn, start.user); {
	case errors.Is(err, pgtls.ErrInTheClear):
		return plainRefusal(conn, start)
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

// controlRefusal is for a client that names the control role, which may change the fence. Where Postgres is at a Unix
// socket and uses peer authentication, it looks at Fencepost's own process, and would let every client log in as that
// role.
func controlRefusal(user string) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "28000",
		Message:  fmt.Sprintf("role %q is Fencepost's own and cannot be used through Fencepost", fencing.ASCII(user)),
		Hint:     "Connect as another role, or to Postgres directly (control.user in Fencepost's configuration).",
	}
}

// plainRefusal returns the error of Postgres for a client without TLS for which pg_hba.conf
// has only hostssl lines.
func plainRefusal(conn net.Conn, start *startup) error {
	host, _, err := net.SplitHostPort(conn.RemoteAddr().String())
	if err != nil {
		host = conn.RemoteAddr().String()
	}
	return &fencing.Refusal{
		SQLState: "28000",
		Message: fmt.Sprintf("no pg_hba.conf entry for host %q, user %q, database %q, no encryption",
			fencing.ASCII(host), fencing.ASCII(start.user), fencing.ASCII(start.database)),
		Hint:     "Fencepost requires TLS here (tls.mode in its configuration): connect with sslmode=require or stricter.",
		Verbatim: true,
	}
}

// gssRefusal is for a client whom Postgres asks for a Kerberos ticket. The client would get one for the host that it
// has connected to, which is Fencepost's and not that of Postgres.
var gssRefusal = &fencing.Refusal{
	SQLState: "28000", Message: "Postgres asks for GSSAPI or SSPI authentication (Kerberos), which Fencepost does not relay",
	Hint: "In pg_hba.conf, let connections from Fencepost's address log in by another method, such as scram-sha-256.",
}

// unboundRefusal is the server's error for a client that insists on channel binding, and says
// what can be done.
var unboundRefusal = &fencing.Refusal{
	SQLState: "08P01", Message: "SCRAM channel binding negotiation error",
	Detail:   "The client supports SCRAM channel binding, and so does the server, but Fencepost stands between them with a certificate of its own.",
	Hint:     "Connect with channel_binding=disable, or give Fencepost the server's own certificate (tls.cert_file in its configuration).",
	Verbatim: true,
}
