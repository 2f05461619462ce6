package refusals

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
)

// The reasons for which a connection is refused.
const (
	reasonLimit          = "limit"          // of connections or resources, here or in Postgres
	reasonAuthentication = "authentication" // by Postgres, for its certificate, or because the user may not campaign
	reasonResource       = "resource"       // the resource or the worker id is not for this client
	reasonFence          = "fence"          // it cannot be used, or the worker was superseded
	reasonStartup        = "startup"        // the client's startup is invalid, or too slow
	reasonUpstream       = "upstream"       // Postgres cannot be reached, or refuses for another reason
	reasonShutdown       = "shutdown"       // of this proxy
)

// Reasons are all reasons for which a connection is refused.
func Reasons() []string {
	return []string{reasonLimit, reasonAuthentication, reasonResource, reasonFence, reasonStartup, reasonUpstream, reasonShutdown}
}

// reasonOfRefusal returns why a connection is refused.
func reasonOfRefusal(r *fencing.Refusal) string {
	switch r {
	case ShuttingDown:
		return reasonShutdown
	case TooManyWait:
		return reasonLimit
	case FenceLate:
		return reasonFence
	}
	return reasonOf(r.SQLState, false)
}

// reasonOf returns the reason that a SQLSTATE gives. byServer says that Postgres, and
// not Fencepost, refused the connection.
func reasonOf(sqlstate string, byServer bool) string {
	switch {
	case sqlstate == "53300", sqlstate == "53400", sqlstate == NoDescriptors.SQLState:
		return reasonLimit
	case strings.HasPrefix(sqlstate, "28"):
		return reasonAuthentication
	case byServer, strings.HasPrefix(sqlstate, "57P"): // it cannot be reached, or is not the primary any more
		return reasonUpstream
	case sqlstate == "42501", sqlstate == "42704", sqlstate == fencing.StateUnfenceable, sqlstate == fencing.StateNotLeader:
		return reasonResource
	case strings.HasPrefix(sqlstate, "ZF"):
		return reasonFence
	default:
		return reasonStartup
	}
}
