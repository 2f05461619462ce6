package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// SQLSTATEs of the server that this package distinguishes.
const (
	codeNoRight    = "42501"
	codeLocked     = "55P03"
	codeNotReady   = "55000"
	codeReadOnly   = "25006"
	codeProtocol   = "08P01"
	codeTooMany    = "53300"
	codeNoDatabase = "3D000"
	codeNoTable    = "42P01"
)

// NoFence returns a ZF004 refusal that an operator resolves by a migration.
func (s *Store) NoFence(kind faults.Kind, format string, args ...any) *Unusable {
	return &Unusable{Kind: kind, Refusal: &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message:  fmt.Sprintf(format, args...),
		Hint:     "Run: " + s.migrateCommand(),
	}}
}

// Explain converts a server error that a client should see into a *fencing.Refusal.
// Other errors are returned unchanged.
func (s *Store) Explain(err error) error {
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
		u := s.NoFence(faults.Schema, "the schema fencepost of database %s is missing or incomplete: %s", fencing.ASCII(s.cfg.Database), fencing.ASCII(pg.Message))
		u.Hint = "If workers write in this database, run: " + s.migrateCommand() + ". Otherwise, connect to it without fencepost.resource."
		u.Err = err
		return u
	case codeReadOnly: // the control connections set read-only mode themselves, so it is the server's
		return &Unusable{Kind: faults.Upstream, Err: err, Refusal: &fencing.Refusal{
			SQLState: fencing.StateNoFence,
			Message:  fmt.Sprintf("database %s accepts no writes: the server is a standby", fencing.ASCII(s.cfg.Database)),
			Hint:     "Let upstream.address name the primary. After a promotion of this server the next attempt succeeds.",
		}}
	case codeNoRight:
		return s.NoFence(faults.Privilege, "role %s lacks a privilege on the schema fencepost of database %s: %s", fencing.ASCII(s.cfg.User), fencing.ASCII(s.cfg.Database), fencing.ASCII(pg.Message))
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

// CodeOf returns the SQLSTATE of a server error, "" for any other error.
func CodeOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
