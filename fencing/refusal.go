package fencing

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
	// StateOldSnapshot is Postgres's own serialization_failure. The check raises it if
	// the transaction's snapshot is older than the grant of the worker's own epoch.
	StateOldSnapshot = "40001"
	// StateAwardNotNewer is raised by fencepost.grant if the award is not newer than
	// the recorded one. It never reaches a client.
	StateAwardNotNewer = "ZF006"
	// StateUnnumbered is raised by fencepost.grant if the award's lease service
	// instance has no number. It never reaches a client.
	StateUnnumbered = "ZF007"
)

// Refusal is an error that a client sees as a Postgres ErrorResponse.
type Refusal struct {
	SQLState string
	Message  string // ASCII only, so that it is readable in every client_encoding
	Detail   string // one line of JSON
	Hint     string
}

func (r *Refusal) Error() string { return r.Message + " (" + r.SQLState + ")" }
