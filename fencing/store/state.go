package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ServerState is what a server says about itself.
type ServerState struct {
	Standby  bool   // it is in recovery
	ReadOnly bool   // transactions are read-only unless they say otherwise, as on a standby
	System   string // the system identifier
	// Timeline is that in which a primary writes, and the newest that a standby is known to have.
	Timeline uint32
	// Server identifies the server until its next restart, whatever address leads to it.
	Server   string
	Standbys string // synchronous_standby_names
}

// renewal is how long a StateReader keeps a connection. The address may lead to another server
// by then, to which new connections go.
const renewal = 10 * time.Second

const (
	renewalTimeout = time.Second
	// closeTimeout bounds the end of a connection, whose server may hang.
	closeTimeout = 100 * time.Millisecond
)

// StateReader asks one server for its state, as the control role, over a connection that it
// keeps. It must not be used concurrently.
type StateReader struct {
	cfg   Config
	conn  *pgx.Conn // nil if there is none
	since time.Time // when it was opened, or was to be renewed
	late  bool      // it was to be renewed, but the server was slow
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
		closeConn(r.conn)
		r.conn = nil
	}
}

func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it
}

// Read returns the state. If the connection that it kept has broken, or is old, it opens another.
func (r *StateReader) Read(ctx context.Context) (ServerState, error) {
	if r.conn != nil && time.Since(r.since) > renewal {
		if err := r.renew(ctx); err != nil {
			return ServerState{}, short(err)
		}
	}
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

// renew replaces the connection. The old one stays if the server has none to spare, and once if
// the server is slow.
func (r *StateReader) renew(ctx context.Context) error {
	old := r.conn
	bounded, cancel := context.WithTimeout(ctx, renewalTimeout)
	defer cancel()
	err := r.connect(bounded)
	late := err != nil && bounded.Err() != nil
	if codeOf(err) == codeTooMany || late && !r.late {
		r.since, r.late = time.Now(), late
		return nil
	}
	if err != nil {
		r.conn = nil
	}
	r.late = false
	closeConn(old)
	return err
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
	r.conn, r.since = conn, time.Now()
	return nil
}

func (r *StateReader) ask(ctx context.Context) (st ServerState, err error) {
	// A promotion between two functions makes the statement fail, or the standby look like
	// one for another second.
	//
	// A standby knows a new timeline at once while it receives it, and for good after its next
	// restartpoint. received_tli is null without pg_read_all_stats.
	err = r.conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, c.system_identifier::text,
		CASE WHEN pg_is_in_recovery() THEN greatest((SELECT timeline_id FROM pg_control_checkpoint()),
			(SELECT min_recovery_end_timeline FROM pg_control_recovery()), (SELECT received_tli FROM pg_stat_wal_receiver))
		ELSE ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint END,
		concat_ws(' ', c.system_identifier, current_setting('port'), extract(epoch FROM pg_postmaster_start_time())),
		current_setting('synchronous_standby_names') FROM pg_control_system() c`).
		Scan(&st.Standby, &st.ReadOnly, &st.System, &st.Timeline, &st.Server, &st.Standbys)
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
