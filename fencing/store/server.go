package store

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// Server is where a connection leads.
type Server struct {
	Address string          // of one server, as in Config
	TLS     *tls.Config     // nil: no TLS
	Tenure  context.Context // if not nil, its end closes the connection, also while it is in use
	// Standby, if not nil, is called when a new connection has led to a standby, and returns
	// what it is refused with, nil if a standby will do.
	Standby func() *fencing.Refusal
}

// server returns where a new connection leads.
func (cfg *Config) server(ctx context.Context) (Server, error) {
	if cfg.Primary == nil {
		return Server{Address: cfg.Address, TLS: cfg.TLS}, nil
	}
	return cfg.Primary(ctx)
}

// direct makes a connection lead to the server, for as long as its tenure lasts.
func (s Server) direct(c *pgx.ConnConfig) (err error) {
	if c.Host, c.Port, err = hostAndPort(s.Address); err != nil {
		return err
	}
	c.TLSConfig = s.TLS
	if s.Standby != nil {
		c.ValidateConnect = func(_ context.Context, conn *pgconn.PgConn) error {
			if conn.ParameterStatus("in_hot_standby") == "on" {
				if r := s.Standby(); r != nil {
					return &Unusable{Kind: faults.Upstream, Refusal: r}
				}
			}
			return nil
		}
	}
	if s.Tenure != nil {
		c.DialFunc = dialWithin(s.Tenure, c.DialFunc)
	}
	return nil
}

// dialWithin returns a function that dials connections which are closed when the tenure ends.
// pgx uses it for cancel requests too.
func dialWithin(tenure context.Context, dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return tenured{conn, context.AfterFunc(tenure, func() { _ = conn.Close() })}, nil
	}
}

// tenured is a connection that the end of a tenure closes.
type tenured struct {
	net.Conn
	keep func() bool
}

func (t tenured) Close() error {
	t.keep()
	return t.Conn.Close()
}

// NetConn returns the connection that the tenure closes, as that of a tls.Conn does.
func (t tenured) NetConn() net.Conn { return t.Conn }

// Abort closes a connection at once, and sends nothing more of what was written to it.
func Abort(conn net.Conn) {
	for {
		outer, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = outer.NetConn()
	}
	if sends, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = sends.SetLinger(0)
	}
	_ = conn.Close()
}

// hostAndPort returns what pgx needs of an address. The host of a Unix socket is its
// directory, and its name ends with the port.
func hostAndPort(address string) (host string, port uint16, err error) {
	var digits string
	if path.IsAbs(address) {
		host, digits = path.Dir(address), strings.TrimPrefix(path.Base(address), ".s.PGSQL.")
	} else if host, digits, err = net.SplitHostPort(address); err != nil {
		return "", 0, fmt.Errorf("parse the address: %w", err)
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("parse the port of %q: %w", address, err)
	}
	return host, uint16(n), nil
}

// migrateCommand returns the command that installs or updates the schema. Of several servers it
// names the primary, because the command itself knows no timelines: it would take the first one that
// accepts writes, which may be a former primary.
func (s *Store) migrateCommand() string {
	dsn := url.URL{Scheme: "postgres", User: url.User(s.cfg.User), Path: "/" + s.cfg.Database}
	address := s.primaryAddress()
	host, port, err := hostAndPort(address)
	switch {
	case err != nil: // it cannot be connected to either
		dsn.Host = "PRIMARY"
	case path.IsAbs(address):
		dsn.RawQuery = "host=" + url.QueryEscape(host) + "&port=" + strconv.Itoa(int(port))
	default:
		dsn.Host = address
	}
	return "fencepost migrate --dsn " + dsn.String()
}

// primaryAddress returns the address of the primary, or of the only server. It does not wait: the
// error that it is for comes from that server.
func (s *Store) primaryAddress() string {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	server, err := s.cfg.server(ctx)
	if err != nil {
		return s.cfg.Address
	}
	return server.Address
}

// application is the application_name of connections of the control role. Those of a proxy with a
// presence id have that id after it.
const application = "fencepost"

func applicationOf(presenceID string) string { return application + " " + presenceID }

// PresenceID returns that of the configuration.
func (s *Store) PresenceID() string { return s.cfg.PresenceID }

// Gone reports whether the proxy with this presence id has no connection to the server, to whatever
// database, and no proxy through which the candidacy of this incarnation runs since an upgrade has one. Connections of
// roles without the rights of the schema's owner do not count, whatever they call themselves.
func (s *Store) Gone(ctx context.Context, presenceID, incarnation string) (gone bool, err error) {
	err = s.free.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) a JOIN pg_namespace n ON n.nspname = 'fencepost'
		WHERE a.application_name IN (SELECT $1 UNION ALL SELECT $2 || c.proxy FROM fencepost.candidates c WHERE c.incarnation = $3)
		AND pg_has_role(a.usesysid, n.nspowner, 'USAGE'))`, applicationOf(presenceID), applicationOf(""), incarnation).Scan(&gone)
	if err != nil {
		return false, fmt.Errorf("look for the connections of another proxy: %w", err)
	}
	return gone, nil
}

// startedSQL asks when the server was started, in the form of fencing.RegisterRequest, and whether it is a standby.
const startedSQL = "SELECT encode(timestamptz_send(pg_postmaster_start_time()), 'hex'), pg_is_in_recovery()"

// Elsewhere is fencing.Fence.Elsewhere. A connection that exists stays at the server to which the address led when it
// was opened, so only a new one shows where the address leads now. It is not opened if one that exists has led there
// too.
func (s *Store) Elsewhere(ctx context.Context, started string) bool {
	there := func(ctx context.Context, s *Store) (is bool, err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var at string
		var standby bool
		err = s.free.QueryRow(ctx, startedSQL).Scan(&at, &standby)
		return at == started || standby, err
	}
	if is, err := there(ctx, s); err == nil && is {
		return false
	}
	var is bool
	err := withStore(ctx, s.cfg, func(anew *Store) (err error) {
		is, err = there(ctx, anew)
		return err
	})
	return err == nil && !is
}
