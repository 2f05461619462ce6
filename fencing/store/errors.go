package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
)

// ErrUnconfirmed says that a grant was recorded, but that its wait for the
// synchronous standbys was cut short: it counts as not granted. The same award
// asked again waits again.
var ErrUnconfirmed = errors.New("the wait for the synchronous standbys was cancelled")

// GrantBlockedError says that a grant was given up, and because of what. The old
// epoch stays in force. It wraps nothing of the server's.
type GrantBlockedError struct {
	Resource string
	// Holders describes what stood in the way, one line each.
	Holders []string
}

func (e *GrantBlockedError) Error() string {
	return fmt.Sprintf("in the way of a grant on resource %q: %s", e.Resource, strings.Join(e.Holders, "; "))
}

// SQLSTATEs of the server that this package tells apart.
const (
	codeDeadlock      = "40P01"
	codeSerialization = "40001"
	codeNoRight       = "42501"
	codeInternal      = "XX000"
	codeInUse         = "55006" // raised by fencepost.drain
	codeLocked        = "55P03"
	codeCancelled     = "57014"
)

// noFence is a ZF004 whose way out is a migration.
func (s *Store) noFence(format string, args ...any) *fencing.Refusal {
	return &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf(format, args...),
		Hint:     "Run: " + s.migrateCommand(),
	}
}

// explain turns a server's error into a *fencing.Refusal where a client is to
// see one. Other errors stay as they are.
func (s *Store) explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	if strings.HasPrefix(pg.Code, "ZF") {
		return &fencing.Refusal{SQLState: pg.Code, Message: pg.Message, Detail: pg.Detail, Hint: pg.Hint}
	}
	switch pg.Code {
	case "3F000", "42P01", "42883", "42703", "42704":
		return s.noFence("the schema fencepost of database %s is missing or incomplete: %s", ascii(s.cfg.Database), ascii(pg.Message))
	case codeNoRight:
		return s.noFence("role %s lacks a right on the schema fencepost of database %s: %s", ascii(s.cfg.User), ascii(s.cfg.Database), ascii(pg.Message))
	case "22001", "23514":
		return &fencing.Refusal{SQLState: fencing.StateNoFence, Message: "a name is empty or too long: " + ascii(pg.Message),
			Hint: "A resource's name has 1 to 255 characters."}
	case "22P05", "22021":
		return &fencing.Refusal{SQLState: fencing.StateNoFence,
			Message: fmt.Sprintf("a resource's or a worker's name cannot be written in the encoding of database %s: %s", ascii(s.cfg.Database), ascii(pg.Message)),
			Hint:    "Use names of ASCII characters."}
	}
	return err
}

// ownClasses are the classes of errors that are no trigger's doing: ours, and
// those of locks, cancellation and a lack of resources.
var ownClasses = map[string]bool{"ZF": true, "40": true, "53": true, "55": true, "57": true}

// explainDDL is explain for a statement that alters a sequence: a user's event
// trigger can make it fail, and is then named.
func (s *Store) explainDDL(ctx context.Context, err error) error {
	var pg *pgconn.PgError
	explained := s.explain(err)
	if !errors.As(err, &pg) || !strings.Contains(pg.Where, "SEQUENCE") || ownClasses[pg.Code[:min(2, len(pg.Code))]] {
		return explained
	}
	rows, queryErr := s.free.Query(ctx, `SELECT t.evtname || ' (function ' || t.evtfoid::regproc || ')' FROM pg_event_trigger t
		WHERE t.evtenabled <> 'D' AND t.evtevent IN ('ddl_command_start', 'ddl_command_end')
		  AND (t.evttags IS NULL OR t.evttags && '{ALTER SEQUENCE,CREATE SEQUENCE,GRANT}') ORDER BY 1`)
	if queryErr != nil {
		return explained
	}
	triggers, queryErr := pgx.CollectRows(rows, pgx.RowTo[string])
	if queryErr != nil || len(triggers) == 0 {
		return explained
	}
	return &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message: fmt.Sprintf("an event trigger of database %s refuses what a grant must do: %s: %s",
			ascii(s.cfg.Database), ascii(strings.Join(triggers, ", ")), ascii(pg.Message)),
		Hint: "Let the event trigger pass sequences of the schema fencepost.",
	}
}

// codeOf is the SQLSTATE of a server's error, "" for any other.
func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// retryable reports whether a grant that failed with err may be asked again at
// once: somebody else's lock or catalogue change came between, and nothing was
// recorded.
func retryable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code == codeDeadlock || pg.Code == codeSerialization ||
		pg.Code == codeInternal && strings.Contains(pg.Message, "concurrently")
}

// ascii quotes what is not plain in a text that a client may see.
func ascii(text string) string {
	quoted := strconv.QuoteToASCII(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// noticesKey is where a connection keeps the warnings of its last statement.
const noticesKey = "fencepost.notices"

// keepNotice remembers the server's warnings with their connection. It runs in
// the goroutine that uses the connection.
func keepNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	kept, _ := c.CustomData()[noticesKey].([]*pgconn.Notice)
	c.CustomData()[noticesKey] = append(kept, n)
}

func forgetNotices(c *pgconn.PgConn) { delete(c.CustomData(), noticesKey) }

// unconfirmed reports whether the last commit was not confirmed by the standbys
// it waited for. The warning is told by the server's routine: its text is
// translated, and a user's own WARNING has the same SQLSTATE.
func unconfirmed(c *pgconn.PgConn) bool {
	kept, _ := c.CustomData()[noticesKey].([]*pgconn.Notice)
	for _, n := range kept {
		if n.Routine == "SyncRepWaitForLSN" {
			return true
		}
	}
	return false
}
