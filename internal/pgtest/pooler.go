package pgtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/child"
	"github.com/fencepost/fencepost/internal/ports"
)

// Pooler runs PgBouncer in front of the server until the test ends, and returns its address.
// Every role may log in without a password. settings are lines of its configuration, which
// override those that it has here.
func Pooler(t testing.TB, s *Server, settings ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fencepost-pooler-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	port := ports.For(t)
	host, upstream, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	lines := append([]string{
		"[databases]", fmt.Sprintf("* = host=%s port=%s", host, upstream), "[pgbouncer]",
		"listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(port.Number), "unix_socket_dir =",
		"auth_type = trust", "auth_file = " + filepath.Join(dir, "users.txt"), "pool_mode = session",
	}, settings...)
	users := ""
	for _, role := range []string{Superuser, App, Control} {
		users += strconv.Quote(role) + " \"\"\n"
	}
	for name, text := range map[string]string{"pgbouncer.ini": strings.Join(lines, "\n") + "\n", "users.txt": users} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	address := port.Address()
	runPooler(t, s, dir)
	awaitPooler(t, fmt.Sprintf("postgres://%s@%s/postgres?sslmode=disable&default_query_exec_mode=simple_protocol", Superuser, address))
	return address
}

// runPooler runs PgBouncer until the test ends.
func runPooler(t testing.TB, s *Server, dir string) {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // not in every user's PATH
	}
	cmd := exec.Command(program, "-q", filepath.Join(dir, "pgbouncer.ini"))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.as}
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	child.OwnSession(cmd, syscall.SIGQUIT)
	p, err := child.Start("PgBouncer", cmd)
	if err != nil {
		t.Fatalf("%v (scripts/setup.sh pgbouncer installs it)", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		<-p.Done()
		if t.Failed() {
			t.Logf("PgBouncer's log:\n%s", log.String())
		}
	})
}

// awaitPooler waits until the pooler serves.
func awaitPooler(t testing.TB, dsn string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, dsn)
		if err == nil {
			_ = conn.Close(ctx)
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("PgBouncer does not serve: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
