package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
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

const (
	// renewal is how long a StateReader keeps a connection. The address may lead to another
	// server by then, to which new connections go.
	renewal = 10 * time.Second
	// renewalTimeout bounds the attempt to open the next one.
	renewalTimeout = 3 * time.Second
	// closeTimeout bounds the end of a connection, whose server may hang.
	closeTimeout = 100 * time.Millisecond
)

// otherDatabase is where a StateReader logs in while its own database does not exist. The state is
// the same in all of them.
const otherDatabase = "postgres"

// StateReader asks one server for its state, as the control role, over a connection that it
// keeps. It must not be used concurrently.
type StateReader struct {
	cfg   Config
	conn  *pgx.Conn // nil if there is none
	since time.Time // when it was opened, or was last to be renewed
	next  *opening  // the connection that replaces it, nil if none is being opened
}

// opening is a connection that is being opened, while another one is in use.
type opening struct {
	stop context.CancelFunc
	done chan struct{} // closed when conn and err are set
	conn *pgx.Conn
	err  error
}

// NewStateReader returns a reader for the server at cfg.Address, whatever cfg.Primary says.
// Close closes its connection.
func NewStateReader(cfg Config) *StateReader {
	cfg.Primary = nil
	return &StateReader{cfg: cfg}
}

// Close closes the connection. The next Read opens another one.
func (r *StateReader) Close() {
	if r.next != nil {
		r.next.stop()
		<-r.next.done
		closeConn(r.next.conn)
	}
	closeConn(r.conn)
	r.conn, r.next = nil, nil
}

func closeConn(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // nothing is lost with it
}

// Read returns the state. If the connection that it kept has broken, or is old, it opens another.
func (r *StateReader) Read(ctx context.Context) (ServerState, error) {
	r.renew()
	if r.conn != nil {
		st, err := r.ask(ctx)
		if err == nil || ctx.Err() != nil {
			return st, short(err)
		}
	}
	conn, err := r.open(ctx)
	if err != nil {
		return ServerState{}, short(err)
	}
	r.conn, r.since = conn, time.Now()
	st, err := r.ask(ctx)
	return st, short(err)
}

// renew replaces the connection if it is old. It does not wait: until the next one is open, the old
// one is used. That one stays if the server refuses another, because it is still the server to which
// the address leads, and is closed if the address leads to no server that answers.
func (r *StateReader) renew() {
	if r.next == nil {
		if r.conn != nil && time.Since(r.since) > renewal {
			r.next = r.begin()
		}
		return
	}
	select {
	case <-r.next.done:
	default:
		return
	}
	next := r.next
	r.next, r.since = nil, time.Now()
	if next.err == nil || !refused(next.err) {
		closeConn(r.conn)
		r.conn = next.conn
	}
}

// begin begins to open another connection. Close, or the renewal of which it is a part, ends it.
func (r *StateReader) begin() *opening {
	ctx, stop := context.WithTimeout(context.Background(), renewalTimeout)
	o := &opening{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		defer stop()
		o.conn, o.err = r.open(ctx)
	}()
	return o
}

// refused reports whether a server has answered that it lets the control role have no connection:
// the role, its password, the database or the limits do not allow one. A server that starts or
// stops says something else.
func refused(err error) bool {
	code := CodeOf(err)
	return code == codeNoRight || code == codeNotReady ||
		strings.HasPrefix(code, "28") || strings.HasPrefix(code, "3D") || strings.HasPrefix(code, "53")
}

// open opens a connection to the configured database or, if there is none, to another one.
func (r *StateReader) open(ctx context.Context) (*pgx.Conn, error) {
	conn, err := connect(ctx, r.cfg)
	if CodeOf(err) != codeNoDatabase || r.cfg.Database == otherDatabase {
		return conn, err
	}
	other := r.cfg
	other.Database = otherDatabase
	if conn, failed := connect(ctx, other); failed == nil {
		return conn, nil
	}
	return nil, err
}

func connect(ctx context.Context, cfg Config) (*pgx.Conn, error) {
	c, err := cfg.connection(ctx)
	if err != nil {
		return nil, err
	}
	delete(c.RuntimeParams, "default_transaction_read_only") // the server's own is asked for
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		explains := Store{cfg: cfg} // whose Primary is not set
		return nil, explains.Explain(err)
	}
	if err := finish(ctx, conn); err != nil {
		closeConn(conn) // it cannot be used
		return nil, err
	}
	return conn, nil
}

func (r *StateReader) ask(ctx context.Context) (st ServerState, err error) {
	// A promotion between two functions makes the statement fail, or the standby look like
	// one for another second.
	//
	// A standby knows a new timeline at once while it receives it, and for good after its next
	// restartpoint. received_tli is null without pg_read_all_stats. As to the function, see the SQL of polls.
	err = r.conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('transaction_read_only')::bool, c.system_identifier::text,
		CASE WHEN pg_is_in_recovery() THEN greatest((SELECT timeline_id FROM pg_control_checkpoint()),
			(SELECT min_recovery_end_timeline FROM pg_control_recovery()), (SELECT received_tli FROM pg_stat_get_wal_receiver()))
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
