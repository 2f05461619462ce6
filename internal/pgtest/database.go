package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/stopwatch"
)

// Template is the database from which fresh ones are copied.
const Template = "fencepost_template"

// Addr returns host:port of the server.
func (s *Server) Addr() string { return s.port.Address() }

// Port returns the server's TCP port.
func (s *Server) Port() int { return s.port.Number }

// SocketDir returns the directory of the server's Unix socket.
func (s *Server) SocketDir() string { return s.dir }

// DataDir returns the server's data directory.
func (s *Server) DataDir() string { return s.data() }

// Program returns the path of a program for this server: its own, or the newest of the
// system's packages in the case of psql and pgbench, which work with every version, and of pg_dump,
// pg_dumpall and pg_restore, which refuse a newer one. It fails the test if there is none.
func (s *Server) Program(t testing.TB, name string) string {
	t.Helper()
	dirs := []string{s.bin}
	if slices.Contains([]string{"psql", "pgbench", "pg_dump", "pg_dumpall", "pg_restore"}, name) {
		dirs = append(dirs, serversIn("/usr/lib/postgresql/*/bin")...)
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Fatalf("there is no %s in any of %v: install the package postgresql", name, dirs)
	return ""
}

// DSN returns the DSN of a user's connection to a database. It contains no password.
func (s *Server) DSN(user, db string) string {
	mode := "disable"
	if s.hba != nil && user != Superuser {
		mode = "require"
	}
	return fmt.Sprintf("postgres://%s@%s/%s?sslmode=%s", user, s.Addr(), db, mode)
}

// Connect opens a connection, and closes it when the test ends.
func (s *Server) Connect(t testing.TB, user, db string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN(user, db))
	if err != nil {
		t.Fatalf("connect as %s to %s: %v", user, db, err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Exec runs statements one after another as a user. At the database postgres, where others are created,
// renamed and dropped, it first closes the connections that Ask keeps.
func (s *Server) Exec(t testing.TB, user, db string, statements ...string) {
	t.Helper()
	if db == "postgres" {
		s.asker.close()
	}
	if err := s.exec(user, db, statements...); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) exec(user, db string, statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN(user, db))
	if err != nil {
		return fmt.Errorf("connect as %s to %s: %w", user, db, err)
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("run %q: %w", statement, err)
		}
	}
	return nil
}

// DrainsPatiently has takeovers leave idle backends of that database alone for a minute, instead of 250 ms. Tests of
// on_stale: discard need that: on a busy machine, a proxy may take longer to release its backends.
func (s *Server) DrainsPatiently(t testing.TB, db string) {
	t.Helper()
	s.Exec(t, Superuser, "postgres", "ALTER DATABASE "+pgx.Identifier{db}.Sanitize()+" SET fencepost.drain_idle = '1min'")
}

// LockAway keeps everyone from reading relations of the system catalog in a database, as any role can, until release is
// called. It reads them in a transaction that stays open, and a CREATE RULE of the same role waits for that: it takes
// the lock before the rights are checked, and all who come later wait behind it.
func (s *Server) LockAway(t testing.TB, db string, relations ...string) (release func()) {
	t.Helper()
	ctx := context.Background()
	look, reader := s.Connect(t, Superuser, "postgres"), s.Connect(t, App, db)
	fail := func(err error) {
		if err != nil {
			t.Fatalf("lock %v away: %v", relations, err)
		}
	}
	tx, err := reader.Begin(ctx)
	fail(err)
	var rules []*pgx.Conn
	var pids []int32
	for range relations {
		conn := s.Connect(t, App, db)
		rules, pids = append(rules, conn), append(pids, int32(conn.PgConn().PID()))
	}
	waiting := func() (n int) {
		fail(look.QueryRow(ctx, "SELECT count(DISTINCT pid) FROM pg_lock_status() WHERE NOT granted AND pid = ANY ($1)", pids).Scan(&n))
		return n
	}
	waiting() // it will need nothing of the catalog any more
	for _, relation := range relations {
		_, err := tx.Exec(ctx, "SELECT FROM pg_catalog."+relation)
		fail(err)
	}
	refused := make(chan error, len(relations))
	for i, relation := range relations {
		go func() {
			_, err := rules[i].Exec(ctx, "CREATE RULE in_the_way AS ON INSERT TO pg_catalog."+relation+" DO INSTEAD NOTHING")
			refused <- err
		}()
	}
	for deadline := time.Now().Add(patience); waiting() < len(relations); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%v are not locked", relations)
		}
	}
	return func() {
		if err := tx.Rollback(ctx); err != nil {
			t.Error(err)
		}
		for range relations {
			var pg *pgconn.PgError
			if err := <-refused; !errors.As(err, &pg) || pg.Code != "42501" {
				t.Errorf("a rule for %v: %v", relations, err)
			}
		}
	}
}

// Database creates a fresh database with the schema fencepost, and drops it when the
// test ends.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return s.copyDatabase(t, Template)
}

// EmptyDatabase creates a fresh database without the schema fencepost, in which Control
// may create it, and drops it when the test ends.
func (s *Server) EmptyDatabase(t testing.TB) string {
	t.Helper()
	return s.copyDatabase(t, "template1")
}

func (s *Server) copyDatabase(t testing.TB, from string) string {
	t.Helper()
	stopwatch.AwaitRoom(t)
	name := "db_" + strings.ToLower(rand.Text()[:16])
	// Copy files: the default strategy, block by block, is many times slower.
	if err := s.administer(
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy", name, from),
		fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s", name, Control)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !s.Running() {
			return
		}
		if err := s.administer(fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)); err != nil {
			t.Logf("drop database %s: %v", name, err)
		}
	})
	return name
}

// administer runs statements as the superuser in the database postgres. A shared server keeps a connection for the next
// call; a test that has a server of its own may count connections.
func (s *Server) administer(statements ...string) error {
	if !s.shared {
		return s.exec(Superuser, "postgres", statements...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn := s.asker.take("postgres")
	if conn == nil {
		var err error
		if conn, err = pgx.Connect(ctx, s.askDSN("postgres")); err != nil {
			return fmt.Errorf("connect as %s to postgres: %w", Superuser, err)
		}
	}
	defer s.asker.give("postgres", conn)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("run %q: %w", statement, err)
		}
	}
	return nil
}
