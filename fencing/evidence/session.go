package evidence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Session reads the evidence of one database. Each statement has a snapshot of its own, so
// that no other session's dead rows are kept for longer than one statement takes.
type Session struct {
	conn    *pgx.Conn
	control string // the role that owns the schema
}

// NewSession begins to read the evidence of the database that conn is connected to. The role of
// conn must be a superuser, or a member of the control role.
func NewSession(ctx context.Context, conn *pgx.Conn) (*Session, error) {
	s := &Session{conn: conn}
	// Without this a role would read only the rows that a policy shows it, and not know.
	_, err := conn.Exec(ctx, "SET search_path = pg_catalog, pg_temp; SET row_security = off; SET default_transaction_isolation = 'read committed'")
	if err != nil {
		return nil, fmt.Errorf("prepare the session: %w", err)
	}
	return s, s.examine(ctx)
}

// asControl runs do in a transaction as the control role, which owns the schema.
func (s *Session) asControl(ctx context.Context, do func(pgx.Tx) error) error {
	tx, err := s.conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing was changed
	if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+pgx.Identifier{s.control}.Sanitize()); err != nil {
		return advise(fmt.Errorf("continue as the control role %q: %w", s.control, err))
	}
	return advise(do(tx))
}

// advise says what to do about a missing privilege.
func advise(err error) error {
	if stateOf(err) == "42501" {
		return fmt.Errorf("%w: connect as a superuser, or as a member of the control role that may read the tables", err)
	}
	return err
}

func stateOf(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
