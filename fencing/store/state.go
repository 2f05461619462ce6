package store

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ServerState is what a server says about itself.
type ServerState struct {
	Standby  bool   // it is in recovery
	ReadOnly bool   // transactions are read-only unless they say otherwise, as on a standby
	System   string // the system identifier
	Timeline uint32 // in which it writes; 0 for a standby
	Standbys string // synchronous_standby_names
}

// StateReader asks one server for its state, as the control role, over a connection that it
// keeps. It must not be used concurrently.
type StateReader struct {
	cfg  Config
	conn *pgx.Conn // nil if there is none
}

// NewStateReader returns a reader for the server at cfg.Address, whatever cfg.Primary says.
// Close closes its connection.
func NewStateReader(cfg Config) *StateReader {
	cfg.Primary = nil
	return &StateReader{cfg: cfg.withDefaults()}
}

// Close closes the connection. The next Read opens another one.
func (r *StateReader) Close() {
	if r.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
		defer cancel()
		_ = r.conn.Close(ctx) // nothing is lost with it
		r.conn = nil
	}
}

// Read returns the state. If the connection that it kept has broken, it opens another one.
func (r *StateReader) Read(ctx context.Context) (ServerState, error) {
	if r.conn != nil {
		st, err := r.ask(ctx)
		if err == nil || ctx.Err() != nil {
			return st, short(err)
		}
	}
	if err := r.connect(ctx); err != nil {
		return ServerState{}, short(err)
	}
	st, err := r.ask(ctx)
	return st, short(err)
}

func (r *StateReader) connect(ctx context.Context) error {
	c, err := pgx.ParseConfig("postgres://localhost:5432/postgres?sslmode=disable")
	if err != nil {
		return fmt.Errorf("build the connection configuration: %w", err)
	}
	r.cfg.login(c)
	delete(c.RuntimeParams, "default_transaction_read_only") // the server's own is asked for
	server, err := r.cfg.server(ctx)
	if err != nil {
		return err
	}
	if err := server.direct(c); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		explains := Store{cfg: r.cfg}
		return explains.explain(err)
	}
	if err := finish(ctx, conn); err != nil {
		_ = conn.Close(ctx) // it is of no use
		return err
	}
	r.conn = conn
	return nil
}

func (r *StateReader) ask(ctx context.Context) (st ServerState, err error) {
	// A promotion between two functions makes the statement fail, or the standby look like
	// one for another second.
	err = r.conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, c.system_identifier::text,
		CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
		current_setting('synchronous_standby_names') FROM pg_control_system() c`).
		Scan(&st.Standby, &st.ReadOnly, &st.System, &st.Timeline, &st.Standbys)
	if err != nil {
		r.Close()
		return ServerState{}, fmt.Errorf("ask for the state of the server: %w", err)
	}
	return st, nil
}

// short returns an error of connecting in one line, without what the caller knows: the
// address, the role and the database.
func short(err error) error {
	var unusable *Unusable
	var dial *net.OpError
	var pg *pgconn.PgError
	switch {
	case err == nil, errors.As(err, &unusable):
		return err
	case errors.As(err, &pg):
		return pg
	case errors.As(err, &dial):
		return dial.Err
	default:
		return err
	}
}
