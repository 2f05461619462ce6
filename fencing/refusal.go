package fencing

import (
	"errors"
	"fmt"
	"strconv"
)

// SQLSTATEs of Fencepost's own errors.
const (
	// StateSuperseded means that another worker was granted a higher epoch. The error
	// is FATAL: the connection is over.
	StateSuperseded = "ZF001"
	// StateNotLeader means that the worker does not lead.
	StateNotLeader = "ZF002"
	// StateStartOver means that the connection has become leader since its role was
	// last announced to it, and that the new role has been announced with this error.
	// The client must start over from its reads.
	StateStartOver = "ZF003"
	// StateNoFence means that the fence cannot be checked (schema missing, missing
	// privilege, database restored).
	StateNoFence = "ZF004"
	// StateUnfenceable means that this statement cannot be fenced here.
	StateUnfenceable = "ZF005"
	// StateCannotChange is Postgres's own cant_change_runtime_param.
	StateCannotChange = "55P02"
	// stateUndefinedObject is Postgres's own undefined_object.
	stateUndefinedObject = "42704"
	// StateAwardNotNewer is raised by fencepost.grant if the award is not newer than
	// the recorded one. A client gets it only for a token that exceeds the recorded one by more
	// than the configuration allows.
	StateAwardNotNewer = "ZF006"
	// StateUnnumbered is raised by fencepost.grant if the award's lease service
	// instance has no number. It never reaches a client.
	StateUnnumbered = "ZF007"
	// StateBarred is raised by fencepost.grant if an operator keeps the worker from being
	// granted an epoch. Clients get StateNotLeader instead; see Barred.
	StateBarred = "ZF008"
	// StateInUse is raised by fencepost.remove if the resource is in use. It never reaches
	// a client.
	StateInUse = "ZF009"
	// StateNotHandedOver is raised by fencepost.handover if the chosen worker cannot lead. It
	// never reaches a client.
	StateNotHandedOver = "ZF010"
)

// ErrReplaced means that a fence is gone, because its database was dropped and another one
// was made under its name.
var ErrReplaced = errors.New("the database is another one")

// ErrNoFence means that a database has no schema fencepost, and so nothing to protect.
var ErrNoFence = errors.New("the database has no fence")

// ErrRemoved means that a fence is gone, because an operator removed its resource: there is
// an order to that effect.
var ErrRemoved = errors.New("the resource was removed")

// Refusal is an error that a client sees as a Postgres ErrorResponse.
type Refusal struct {
	SQLState string
	Message  string // ASCII only, so that it is readable in every client_encoding
	Detail   string // one line of JSON
	Hint     string
	// Verbatim means that the message is what Postgres itself says where this is raised, so
	// that clients get it as Postgres words it. Any other message ends with the SQLSTATE.
	Verbatim bool
	// Usage means that the statement is wrong for every worker. It is not a refused write,
	// and is not recorded.
	Usage bool
}

func (r *Refusal) Error() string { return r.Message + " (" + r.SQLState + ")" }

// Text returns the message that a client gets.
func (r *Refusal) Text() string {
	if r.Verbatim {
		return r.Message
	}
	return Marked(r.Message, r.SQLState)
}

// Marked returns a message of Fencepost's own with its SQLSTATE at the end: several drivers
// show a client the message of a FATAL error and hide its SQLSTATE.
func Marked(message, sqlstate string) string { return message + " [" + sqlstate + "]" }

// Trouble is why a candidacy cannot lead, beyond what the fence shows.
type Trouble struct {
	Problem string
	Remedy  string // what an operator has to do; "" if waiting may help
}

// RefusedWorker is what the refusal of a worker that does not lead says of its connection.
type RefusedWorker struct {
	Resource, Worker string
	Nameless         bool // the connection named no worker
	Status           *Status
	Trouble          *Trouble // nil if none is known
}

// WithCause returns the refusal of a worker that does not lead with the cause: what keeps
// the worker from leading, and what helps. It returns any other refusal unchanged.
func (r *Refusal) WithCause(s RefusedWorker) *Refusal {
	if r.SQLState != StateNotLeader {
		return r
	}
	e := *r
	if t := s.Trouble; t != nil {
		if s.Status.Lapsed {
			e.Message = fmt.Sprintf("the lease of %s is not confirmed: %s; worker %s holds epoch %d, and nobody else was granted one",
				strconv.QuoteToASCII(s.Resource), ASCII(t.Problem), strconv.QuoteToASCII(s.Worker), s.Status.Epoch)
		} else {
			e.Message += "; " + ASCII(t.Problem)
		}
		if t.Remedy != "" {
			e.Hint = "Waiting does not help. " + ASCII(t.Remedy)
		}
	}
	if s.Nameless {
		e.Hint += " This connection named no fencepost.worker, so it is a worker of its own: give all connections of one process the same id."
	}
	return &e
}
