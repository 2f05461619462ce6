package fence

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnconfirmed means that a grant was recorded, but that its wait for the synchronous
// standbys was cancelled, so it does not count as granted. Asking again with the same
// award waits again.
var ErrUnconfirmed error = unconfirmedError{}

type unconfirmedError struct{}

func (unconfirmedError) Error() string {
	return "it is recorded, but no standby of synchronous_standby_names has confirmed it: the wait for one was cancelled"
}

// BlockedBy returns what the grant waits for, which Fence.AwaitUnblocked looks at.
func (unconfirmedError) BlockedBy() []string {
	return []string{"the standbys of synchronous_standby_names"}
}

// GrantBlockedError means that a grant was given up because something blocked it. The
// old epoch stays in force, unless the connection did not respond either. It does not
// wrap a server error.
type GrantBlockedError struct {
	Resource string
	// Holders describes the obstacles, one line each.
	Holders []string
}

func (e *GrantBlockedError) Error() string {
	return fmt.Sprintf("grant on resource %q is blocked: %s", e.Resource, strings.Join(e.Holders, "; "))
}

// BlockedBy returns the obstacles, one line each.
func (e *GrantBlockedError) BlockedBy() []string { return e.Holders }

// SQLSTATEs of the server that this package distinguishes.
const (
	codeDeadlock      = "40P01"
	codeSerialization = "40001"
	codeNoRight       = "42501"
	codeInUse         = "55006" // raised by fencepost.drain
	codeLocked        = "55P03"
	codeCancelled     = "57014"
	codeNoRow         = "P0002"
	codeNoTable       = "42P01"
	codeNoSchema      = "3F000"
)

// isRetryable reports whether a grant that failed with err may be retried at once,
// because a concurrent lock interfered and nothing was recorded.
func isRetryable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code == codeDeadlock || pg.Code == codeSerialization
}
