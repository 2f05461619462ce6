package pgtest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// asker keeps a connection of the superuser to each database, so that a test can ask again and again.
// To open a connection costs Postgres far more than what is asked.
type asker struct {
	mu   sync.Mutex
	idle map[string]*pgx.Conn // by database
}

// take returns the connection to a database that no one uses, nil if there is none.
func (a *asker) take(db string) *pgx.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	conn := a.idle[db]
	delete(a.idle, db)
	return conn
}

// give keeps a connection, unless there is one, or it is of no use.
func (a *asker) give(db string, conn *pgx.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.idle[db] != nil || conn.IsClosed() {
		_ = conn.Close(context.Background())
		return
	}
	if a.idle == nil {
		a.idle = map[string]*pgx.Conn{}
	}
	a.idle[db] = conn
}

// close closes what no one uses: for statements that need a database without connections.
func (a *asker) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, conn := range a.idle {
		_ = conn.Close(context.Background())
	}
	a.idle = nil
}

// Ask reads one value from a database as the superuser, past any proxy.
func Ask[T any](t testing.TB, s *Server, db, sql string, args ...any) (value T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if conn := s.asker.take(db); conn != nil {
		err := conn.QueryRow(ctx, sql, args...).Scan(&value)
		if err == nil {
			s.asker.give(db, conn)
			return value
		}
		_ = conn.Close(ctx)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Severity == "ERROR" {
			t.Fatalf("ask %q: %v", sql, err)
		}
		// The server has ended the connection, or was restarted, since it was used.
	}
	conn, err := pgx.Connect(ctx, s.askDSN(db))
	if err != nil {
		t.Fatalf("connect to %s: %v", db, err)
	}
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		_ = conn.Close(ctx)
		t.Fatalf("ask %q: %v", sql, err)
	}
	s.asker.give(db, conn)
	t.Cleanup(func() {
		if conn := s.asker.take(db); conn != nil {
			_ = conn.Close(context.Background())
		}
	})
	return value
}

// askDSN is of a connection that prepares nothing, so that what is asked may change its columns.
func (s *Server) askDSN(db string) string {
	return s.DSN(Superuser, db) + "&default_query_exec_mode=exec"
}
