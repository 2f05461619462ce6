package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// Unusable is the error of a database whose fence cannot be used until an operator has
// acted. Its HINT says what to do.
type Unusable struct {
	Kind             faults.Kind
	*fencing.Refusal       // what a client sees
	Err              error // of the server; nil if there was none
}

// FaultKind says what is wrong.
func (u *Unusable) FaultKind() faults.Kind { return u.Kind }

// Unwrap returns the refusal and the server's error.
func (u *Unusable) Unwrap() []error {
	if u.Err == nil {
		return []error{u.Refusal}
	}
	return []error{u.Refusal, u.Err}
}

// FaultOf returns the fault that err shows: an error of this package, or of reaching the server.
func FaultOf(err error) *faults.Fault {
	var unusable *Unusable
	if errors.As(err, &unusable) {
		return &faults.Fault{Kind: unusable.Kind, Problem: unusable.Message, Remedy: unusable.Hint}
	}
	var refusal *fencing.Refusal
	if errors.As(err, &refusal) {
		return &faults.Fault{Kind: faults.Fence, Problem: refusal.Message, Remedy: refusal.Hint}
	}
	f := &faults.Fault{Kind: faults.Upstream, Problem: err.Error(), Remedy: remedy(err)}
	var remedied interface{ Remedy() string } // no one knows which server is the primary
	if errors.As(err, &remedied) {
		f.Remedy = remedied.Remedy()
	}
	return f
}

// remedy says what to do about an error of the server, or of reaching it.
func remedy(err error) string {
	switch code := CodeOf(err); code {
	case "":
		if faults.NoDescriptor(err) {
			return faults.MoreDescriptors
		}
		return "Make sure that Postgres runs, and that upstream.address and upstream.tls are right. If it runs and logins hang, a session may have locked a catalog: docs/blocked.md says how to find it."
	case "57P03":
		return "Postgres is starting, stopping or recovering: wait, and look into its log if that lasts."
	default:
		return "Postgres answers, but refuses this with SQLSTATE " + code + ": look into its log."
	}
}

// Probe connects to a database as the control role, on a connection of its own, and
// examines what Store.Examine would.
func Probe(ctx context.Context, cfg Config) error {
	return withStore(ctx, cfg, func(s *Store) error { return s.Examine(ctx) })
}

// Answers reports whether the server answers, whatever it says, although a statement has failed with this error. If the
// error leaves that open, it asks on a new connection. No lock can hold that up, not even one on a catalog, for which
// every login waits while sessions that exist continue.
func (s *Store) Answers(ctx context.Context, failed error) bool {
	return !isSilent(failed) || !isSilent(s.greet(ctx))
}

// greet connects to the server without a user. Postgres refuses that before it reads anything of a database, and what
// does not speak its protocol does not answer for it, although a load balancer may say for it that it speaks TLS.
func (s *Store) greet(ctx context.Context) error {
	c, err := s.cfg.connection(ctx)
	if err != nil {
		return err
	}
	c.User = ""
	// The dialer tries the addresses of a name, as it does for workers: pgx would continue to the next one after the
	// refusal.
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	conn, err := pgx.ConnectConfig(ctx, c)
	if err == nil {
		_ = conn.Close(ctx) // it has answered
	}
	return err
}

// isSilent reports whether err says that a server has sent nothing. A certificate that is not accepted is no silence,
// nor is a process without file descriptors: they say nothing about existing connections.
func isSilent(err error) bool {
	var op *net.OpError
	var dns *net.DNSError
	var unknown interface{ Remedy() string } // of an operator, for example when no one knows which server is the primary
	switch {
	case CodeOf(err) != "", faults.NoDescriptor(err):
		return false
	case errors.As(err, &dns):
		return dns.IsTimeout || dns.IsTemporary // name servers may be cut off, too
	case errors.As(err, &op):
		return op.Op != "remote error" && op.Op != "local error" // of TLS, about what the server has sent
	case errors.As(err, &unknown):
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Databases connects to cfg.Database and returns at most limit databases of the server
// that the control role may connect to. Templates are not among them.
func Databases(ctx context.Context, cfg Config, limit int) (names []string, err error) {
	err = withStore(ctx, cfg, func(s *Store) error {
		rows, _ := s.free.Query(ctx, `SELECT datname FROM pg_database
			WHERE datallowconn AND NOT datistemplate AND has_database_privilege(oid, 'CONNECT') ORDER BY oid LIMIT $1`, limit)
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return s.Explain(err)
	})
	return names, err
}

// Login is what a login has shown of the server.
type Login struct {
	Standby bool     // the server is in recovery
	Missing []string // which of the databases that were asked for it does not have
}

// LogIn logs in to cfg.Database, asks which of the databases the server has, and whether it is a standby.
func LogIn(ctx context.Context, cfg Config, databases []string) (found Login, err error) {
	err = withStore(ctx, cfg, func(s *Store) error {
		err := s.free.QueryRow(ctx, `SELECT pg_is_in_recovery(),
			ARRAY(SELECT n FROM unnest($1::text[]) n WHERE NOT EXISTS (SELECT FROM pg_database d WHERE d.datname = n::name))`, databases).
			Scan(&found.Standby, &found.Missing)
		return s.Explain(err)
	})
	return found, err
}

// Look connects to a database as the control role and calls look with that connection,
// which is closed afterwards.
func Look(ctx context.Context, cfg Config, look func(*pgx.Conn) error) error {
	return withStore(ctx, cfg, func(s *Store) error {
		conn, err := s.free.Acquire(ctx)
		if err != nil {
			return s.Explain(err)
		}
		defer conn.Release()
		return look(conn.Conn())
	})
}

// withStore calls do with a store that has a single connection.
func withStore(ctx context.Context, cfg Config, do func(s *Store) error) error {
	pool, err := newPool(ctx, cfg, 1, finish, func() {})
	if err == nil {
		defer closePools(pool)
		err = do(&Store{cfg: cfg, free: pool})
	}
	if err != nil {
		return fmt.Errorf("look at database %q: %w", cfg.Database, err)
	}
	return nil
}

// explainLogin converts the error of a connection that the server has refused because of
// the control role. It returns nil for any other.
func (s *Store) explainLogin(err error) error {
	var connecting *pgconn.ConnectError
	var pg *pgconn.PgError
	if !errors.As(err, &connecting) || !errors.As(err, &pg) {
		return nil
	}
	if pg.Code == codeProtocol && strings.Contains(pg.Message, "startup parameter") {
		return pooler(err)
	}
	if pg.Code == "42704" { // undefined_object: one of the settings of login
		return &Unusable{Kind: faults.Upstream, Refusal: fencing.SettingRefusal(pg.Message), Err: err}
	}
	role, database := pgx.Identifier{s.cfg.User}.Sanitize(), pgx.Identifier{s.cfg.Database}.Sanitize()
	u := &Unusable{Kind: faults.ControlLogin, Err: err, Refusal: &fencing.Refusal{
		SQLState: fencing.StateNoFence,
		Message: fmt.Sprintf("Fencepost cannot log in to database %s as its control role %s: %s",
			fencing.ASCII(database), fencing.ASCII(role), fencing.ASCII(pg.Message)),
	}}
	switch {
	case pg.Code == "28P01" && s.cfg.Password == "":
		u.Hint = "control.password (FENCEPOST_CONTROL_PASSWORD) is not set in Fencepost's configuration: set it to the password of role " + role + "."
	case pg.Code == "28P01":
		u.Hint = "Correct control.password (FENCEPOST_CONTROL_PASSWORD) in Fencepost's configuration, or run as a superuser: ALTER ROLE " + role +
			" PASSWORD '...'. If there is no such role, run fencepost migrate --dsn DSN as a superuser."
	case pg.Code == "28000":
		u.Hint = "Make sure that role " + role + " exists and has LOGIN, and that pg_hba.conf lets it connect to database " + database + " from Fencepost's host."
	case pg.Code == codeNoRight:
		u.Kind, u.Hint = faults.Privilege, "Run as a superuser: GRANT CONNECT ON DATABASE "+database+" TO "+role
	case pg.Code == codeNotReady:
		u.Hint = "If the database is to accept connections, run as a superuser: ALTER DATABASE " + database + " ALLOW_CONNECTIONS true. One that Postgres calls invalid can only be dropped."
	case pg.Code == codeTooMany:
		u.Hint = "Leave connections to role " + role + ": raise max_connections or the CONNECTION LIMIT of the role or of the database, or lower limits.max_connections in Fencepost's configuration. " +
			"On PostgreSQL 16 and later, reserved_connections and the role pg_use_reserved_connections reserve some."
	default:
		return nil
	}
	u.Hint = fencing.ASCII(u.Hint)
	return u
}

// pooler returns the error of a server that is a connection pooler.
func pooler(err error) *Unusable {
	return &Unusable{Kind: faults.Upstream, Refusal: fencing.PoolerRefusal, Err: err}
}

// tooOld returns an error if the version of the server is not supported.
func tooOld(conn *pgconn.PgConn) error {
	if r := fencing.OldServer(fencing.ServerMajor(conn.ParameterStatus("server_version"))); r != nil {
		return &Unusable{Kind: faults.Upstream, Refusal: r}
	}
	return nil
}

// OfDatabase reports whether err is the server's refusal of a login to this database, which says nothing
// of logins to others: it does not exist or accepts no connections, its limit of connections is reached, or
// pg_hba.conf or a missing privilege keeps the control role from it.
func OfDatabase(err error) bool {
	var connecting *pgconn.ConnectError
	var pg *pgconn.PgError
	if !errors.As(err, &connecting) || !errors.As(err, &pg) {
		return false
	}
	switch pg.Code {
	case codeNoDatabase, codeNoRight, codeNotReady:
		return true
	case codeTooMany: // the limits of the server and of the role are checked elsewhere
		return pg.Routine == "CheckMyDatabase"
	case "28000":
		return pg.Routine != "InitializeSessionUserId" // which says that there is no such role, or that it has no LOGIN
	default:
		return false
	}
}

// Gone reports whether err says that the database does not exist.
func Gone(err error) bool { return CodeOf(err) == codeNoDatabase }

// NoSchema reports whether err says that the database has no schema fencepost.
func NoSchema(err error) bool { return errors.Is(err, fencing.ErrNoFence) }

// Refused reports whether err says that the server does not let the control role connect
// to the database.
func Refused(err error) bool {
	var connecting *pgconn.ConnectError
	return errors.As(err, &connecting) && CodeOf(err) != ""
}
