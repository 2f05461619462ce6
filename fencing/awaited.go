package fencing

import "time"

// Awaited is a backend that a grant waits for, and ends.
type Awaited struct {
	PID         int32      `json:"pid"`
	User        string     `json:"user"`
	Application string     `json:"application"`
	Address     string     `json:"address"` // from where it is connected to Postgres, mostly a proxy; "local" for a Unix socket
	State       string     `json:"state"`   // as in pg_stat_activity, since Since
	Since       *time.Time `json:"since,omitempty"`
	EndsAt      time.Time  `json:"ends_at"` // when the grant ends it, if it has not ended by itself, by this host's clock
}
