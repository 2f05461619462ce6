package fencing

// SQLSTATEs of Fencepost's own errors.
const (
	// StateSuperseded: another worker was granted a higher epoch; FATAL, the
	// connection is over.
	StateSuperseded = "ZF001"
	// StateNotLeader: the worker does not lead.
	StateNotLeader = "ZF002"
	// StateStartOver: the connection has become leader since it last knew, and
	// has now been told; start over from the read on.
	StateStartOver = "ZF003"
	// StateNoFence: the fence cannot be checked (schema missing, no right,
	// database restored).
	StateNoFence = "ZF004"
	// StateUnfenceable: this statement cannot be fenced here.
	StateUnfenceable = "ZF005"
	// StateAwardNotNewer is raised by fencepost.grant for an award that is not
	// newer than the recorded one. It never reaches a client.
	StateAwardNotNewer = "ZF006"
	// StateUnnumbered is raised by fencepost.grant for an award of a life of the
	// lease service that has no number. It never reaches a client.
	StateUnnumbered = "ZF007"
)

// Refusal is an error that a client sees as a Postgres ErrorResponse.
type Refusal struct {
	SQLState string
	Message  string // ASCII only: it must survive every client_encoding
	Detail   string // one line of JSON
	Hint     string
}

func (r *Refusal) Error() string { return r.Message + " (" + r.SQLState + ")" }
