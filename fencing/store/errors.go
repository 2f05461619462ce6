package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
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
	codeNotReady      = "55000"
	codeReadOnly      = "25006"
	codeProtocol      = "08P01"
	codeTooMany       = "53300"
	codeNoRow         = "P0002"
	codeNoDatabase    = "3D000"
	codeNoTable       = "42P01"
	codeNoSchema      = "3F000"
)

// noFence returns a ZF004 refusal that an operator resolves by a migration.
func (s *Store) noFence(kind faults.Kind, format string, args ...any) *Unusable {
	return &Unusable{Kind: kind, Refusal: &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf(format, args...),
		Hint:     "Run: " + s.migrateCommand(),
	}}
}

// explain converts a server error that a client should see into a *fencing.Refusal.
// Other errors are returned unchanged.
func (s *Store) explain(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return err
	}
	if refused := s.explainLogin(err); refused != nil {
		return refused
	}
	if pg.Code == fencing.StateBarred {
		return barred(pg)
	}
	if strings.HasPrefix(pg.Code, "ZF") {
		return &fencing.Refusal{SQLState: pg.Code, Message: pg.Message, Detail: pg.Detail, Hint: pg.Hint}
	}
	switch pg.Code {
	case "3F000", "42P01", "42883", "42703", "42704":
		u := s.noFence(faults.Schema, "the schema fencepost of database %s is missing or incomplete: %s", fencing.ASCII(s.cfg.Database), fencing.ASCII(pg.Message))
		u.Err = err
		return u
	case codeReadOnly: // the control connections set read-only mode themselves, so it is the server's
		return &Unusable{Kind: faults.Upstream, Err: err, Refusal: &fencing.Refusal{
			SQLState: fencing.StateNoFence,
			Message:  fmt.Sprintf("database %s accepts no writes: the server is a standby", fencing.ASCII(s.cfg.Database)),
			Hint:     "Let upstream.address name the primary. After a promotion of this server the next attempt succeeds.",
		}}
	case codeNoRight:
		return s.noFence(faults.Privilege, "role %s lacks a privilege on the schema fencepost of database %s: %s", fencing.ASCII(s.cfg.User), fencing.ASCII(s.cfg.Database), fencing.ASCII(pg.Message))
	case "22001", "23514":
		return badName("a name is empty or too long: " + fencing.ASCII(pg.Message))
	case "22P05", "22021":
		return &fencing.Refusal{SQLState: fencing.StateNoFence,
			Message: fmt.Sprintf("a name, or the reason of an order, cannot be written in the encoding of database %s: %s", fencing.ASCII(s.cfg.Database), fencing.ASCII(pg.Message)),
			Hint:    "Use ASCII characters."}
	}
	return err
}

// badName refuses the name of a resource.
func badName(message string) *fencing.Refusal {
	return &fencing.Refusal{SQLState: fencing.StateNoFence, Message: message, Hint: fencing.NameRule}
}

// barred converts a ZF008. Its DETAIL says how much longer the order counts.
func barred(pg *pgconn.PgError) error {
	var detail struct {
		Left int64 `json:"left_ms"` // null: until it is lifted
	}
	_ = json.Unmarshal([]byte(pg.Detail), &detail) // without it the worker only tries less often
	return &fencing.Barred{
		Refusal: &fencing.Refusal{SQLState: fencing.StateNotLeader, Message: pg.Message, Detail: pg.Detail, Hint: pg.Hint},
		Left:    time.Duration(detail.Left) * time.Millisecond,
	}
}

// codeOf returns the SQLSTATE of a server error, "" for any other error.
func codeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// isRetryable reports whether a grant that failed with err may be retried at once,
// because a concurrent lock interfered and nothing was recorded.
func isRetryable(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code == codeDeadlock || pg.Code == codeSerialization
}

// noticesKey is the key under which a connection keeps the warnings of its last
// statement.
const noticesKey = "fencepost.notices"

// keepNotice stores a server warning with its connection. It runs in the goroutine that
// uses the connection.
func keepNotice(c *pgconn.PgConn, n *pgconn.Notice) {
	if progress, ok := c.CustomData()[progressKey].(*drainProgress); ok && progress.take(n) {
		return
	}
	kept, _ := c.CustomData()[noticesKey].([]*pgconn.Notice)
	c.CustomData()[noticesKey] = append(kept, n)
}

func forgetNotices(c *pgconn.PgConn) { delete(c.CustomData(), noticesKey) }

// drainProgress is what fencepost.drain has reported so far. The goroutine that uses the connection writes it, and a watch
// reads it.
type drainProgress struct {
	began chan fencing.Epoch // the epoch that ends, when the grant begins to wait; has room for one

	mu    sync.Mutex
	ended []endedBackend
}

// progressKey is the key of the drainProgress among the data of a connection.
const progressKey = "fencepost.progress"

// take processes a notice if fencepost.drain has sent it, and reports whether it has.
func (p *drainProgress) take(n *pgconn.Notice) bool {
	switch n.Message {
	case drainNotice:
		epoch, err := strconv.ParseInt(n.Detail, 10, 64)
		if err != nil {
			return false
		}
		select {
		case p.began <- fencing.Epoch(epoch):
		default: // the watch knows
		}
		return true
	case endedNotice:
		b := endedBackend{at: time.Now()}
		if json.Unmarshal([]byte(n.Detail), &b) != nil {
			return false
		}
		p.mu.Lock()
		p.ended = append(p.ended, b)
		p.mu.Unlock()
		return true
	}
	return false
}

// endedFor returns the process ids of the backends that were terminated at least so long ago.
func (p *drainProgress) endedFor(d time.Duration) (pids []int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.ended {
		if time.Since(b.at) >= d {
			pids = append(pids, b.PID)
		}
	}
	return pids
}

// endedBackend is a registered backend that a grant has terminated.
type endedBackend struct {
	PID         int32     `json:"pid"`
	User        string    `json:"user"`
	Application string    `json:"application"`
	State       string    `json:"state"`
	at          time.Time // when it was terminated
}

// drainNotice is how fencepost.drain says that it waits for registered backends. The DETAIL is the epoch that ends.
const drainNotice = "fencepost waits for registered backends"

// endedNotice is how fencepost.drain reports a backend that it has terminated.
const endedNotice = "fencepost has terminated a registered backend"

// isUnconfirmed reports whether the standbys that the last commit waited for did not
// confirm it. It recognises the warning by the server routine that raised it, because
// the warning's text is translated and a user's own WARNING has the same SQLSTATE.
func isUnconfirmed(c *pgconn.PgConn) bool {
	kept, _ := c.CustomData()[noticesKey].([]*pgconn.Notice)
	for _, n := range kept {
		if n.Routine == "SyncRepWaitForLSN" {
			return true
		}
	}
	return false
}
