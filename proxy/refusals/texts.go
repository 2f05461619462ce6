package refusals

import (
	"errors"
	"fmt"
	"net"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/upstream"
)

// Postgres's own errors for a server that shuts down, and for one with too many clients.
var (
	ShuttingDown   = &fencing.Refusal{SQLState: stateNotNow, Message: "the database system is shutting down", Verbatim: true}
	TooManyClients = &fencing.Refusal{
		SQLState: "53300", Message: "sorry, too many clients already",
		Hint:     "Raise limits.max_connections in Fencepost's configuration.",
		Verbatim: true,
	}
	AdminShutdown = &fencing.Refusal{SQLState: "57P01", Message: "terminating connection due to administrator command", Verbatim: true}
)

// TooManyWait is the refusal of the oldest connection of a worker of which too many wait to lead.
var TooManyWait = &fencing.Refusal{
	SQLState: stateNotNow, Message: "too many newer connections of this worker wait to lead, so this one waits no longer",
	Hint: "Let the driver or the pool wait for a connection for longer than the wait for the lead may take, and close those that it gives up. " +
		"Give each worker an id (fencepost.worker): those without one count together for each client address and user.",
}

// ServerLate is the refusal of a client whose server did not answer in time.
var ServerLate = &fencing.Refusal{
	SQLState: stateNotNow, Message: "Postgres did not answer in time",
	Hint: "See whether Postgres answers, and startup_timeout in Fencepost's configuration.",
}

// FenceLate is the refusal of a client that could not join its candidacy, or whose backend could not be registered, in
// time, although its backend answers.
var FenceLate = &fencing.Refusal{
	SQLState: stateNotNow, Message: "the tables of the fence did not answer in time",
	Hint: "See whether somebody holds a lock on the tables fencepost.fence or fencepost.running, or on a system catalog (pg_locks), or a takeover waits for backends (fencepost status).",
}

// NotRegistered is the refusal of a message in front of which the backend could not be registered in time.
var NotRegistered = &fencing.Refusal{SQLState: fencing.StateNoFence, Message: FenceLate.Message, Hint: FenceLate.Hint}

// NoDescriptors refuses a client for which the process, or the machine, has no file descriptor left.
var NoDescriptors = &fencing.Refusal{
	SQLState: "53000", Message: "Fencepost has no file descriptor left for this connection",
	Hint: faults.MoreDescriptors,
}

// Startup returns the refusal of a client whose fence could not be opened, or whose candidacy
// could not be joined, because of err.
func Startup(err error) *fencing.Refusal {
	if faults.NoDescriptor(err) {
		return NoDescriptors
	}
	return fencing.StartupRefusal(err)
}

// stateNotNow is Postgres's own cannot_connect_now. Of all errors, libpq tries the next host of its
// DSN for this one alone (PQconnectPoll), so a client that names several proxies gets past one that
// cannot reach Postgres.
const stateNotNow = "57P03"

// Unreachable returns the refusal of a client for which connecting to the primary failed with err. The log has the
// whole error.
func Unreachable(err error) *fencing.Refusal {
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
	case faults.NoDescriptor(err):
		return NoDescriptors
	case errors.Is(err, pgtls.ErrUpstreamDeclined):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server does not support SSL", hint
	case errors.Is(err, pgtls.ErrUpstreamCertificate):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS: the server's certificate is not accepted", hint
	case errors.Is(err, pgtls.ErrUpstreamHandshake):
		r.Message, r.Hint = "Fencepost cannot reach Postgres by TLS", hint
	}
	return r
}

// ErrPacketLength closes the connection without an answer, as Postgres does: a driver that
// gives up before its startup packet sends a Terminate instead, and expects no answer.
var ErrPacketLength = errors.New("invalid length of startup packet")

// Protocol returns the refusal of a client that has violated the protocol, in the words
// of Postgres.
func Protocol(format string, args ...any) *fencing.Refusal {
	return &fencing.Refusal{SQLState: "08P01", Message: fmt.Sprintf(format, args...), Verbatim: true}
}

// Control is for a client that names the control role, which may change the fence. Where Postgres is at a Unix
// socket and uses peer authentication, it looks at Fencepost's own process, and would let every client log in as that
// role.
func Control(user string) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: "28000",
		Message:  fmt.Sprintf("role %q is Fencepost's own and cannot be used through Fencepost", fencing.ASCII(user)),
		Hint:     "Connect as another role, or to Postgres directly (control.user in Fencepost's configuration).",
	}
}

// Plain returns the error of Postgres for a client without TLS for which pg_hba.conf
// has only hostssl lines.
func Plain(client net.Addr, user, database string) *fencing.Refusal {
	host, _, err := net.SplitHostPort(client.String())
	if err != nil {
		host = client.String()
	}
	return &fencing.Refusal{
		SQLState: "28000",
		Message: fmt.Sprintf("no pg_hba.conf entry for host %q, user %q, database %q, no encryption",
			fencing.ASCII(host), fencing.ASCII(user), fencing.ASCII(database)),
		Hint:     "Fencepost requires TLS here (tls.mode in its configuration): connect with sslmode=require or stricter.",
		Verbatim: true,
	}
}

// GSS is for a client whom Postgres asks for a Kerberos ticket. The client would get one for the host that it
// has connected to, which is Fencepost's and not that of Postgres.
var GSS = &fencing.Refusal{
	SQLState: "28000", Message: "Postgres asks for GSSAPI or SSPI authentication (Kerberos), which Fencepost does not relay",
	Hint: "In pg_hba.conf, let connections from Fencepost's address log in by another method, such as scram-sha-256.",
}

// Unbound is the server's error for a client that insists on channel binding, and says
// what can be done.
var Unbound = &fencing.Refusal{
	SQLState: "08P01", Message: "SCRAM channel binding negotiation error",
	Detail:   "The client supports SCRAM channel binding, and so does the server, but Fencepost is between them, with a certificate of its own.",
	Hint:     "Connect with channel_binding=disable, or give Fencepost the server's own certificate (tls.cert_file in its configuration).",
	Verbatim: true,
}

// MessageTooLong ends a session whose server has sent a message that is too long for Fencepost.
var MessageTooLong = &fencing.Refusal{
	SQLState: "54000", Message: "Postgres has sent an error, a notice or a setting of more than 16 MB, so Fencepost ends the session",
	Hint: "Whether the last statements were run is not known. Make the text that is raised or set shorter.",
}

// Bug is what the client gets after protocol.ErrBug; the log has the rest.
var Bug = &fencing.Refusal{SQLState: "XX000", Message: "Fencepost ran into a bug, see its log"}

// UnexpectedReply is what the client gets after protocol.ErrUnexpectedReply; the log has the rest.
var UnexpectedReply = &fencing.Refusal{
	SQLState: "08P01",
	Message:  "the server's reply does not fit what was sent, so Fencepost ends the session",
	Hint:     "Whether the last statements were run is not known. The log of Fencepost says what was expected. A COPY that a function executes is not supported.",
}
