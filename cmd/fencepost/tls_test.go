package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencepost/fencepost/internal/config"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/service/servicetest"
)

// secured configures TLS on both sides, for a server that requires it.
func secured(own, control pgtest.Pair, ca *pgtest.Authority) func(*config.Config) {
	return func(c *config.Config) {
		c.TLS.Mode, c.TLS.CertFile, c.TLS.KeyFile = "require", own.CertFile, own.KeyFile
		c.Upstream.TLS.Mode, c.Upstream.TLS.CAFile, c.Upstream.TLS.ServerName = "verify-full", ca.File, "localhost"
		c.Upstream.TLS.CertFile, c.Upstream.TLS.KeyFile = control.CertFile, control.KeyFile
	}
}

// TestServeUnderTLS checks that workers, the control role and the elector can connect
// to a server that requires TLS, and that nobody connects without TLS.
func TestServeUnderTLS(t *testing.T) {
	t.Parallel()
	_, ca, pair := pgtest.SharedTLS(t, 0)
	pg := pgtest.Start(t, pgtest.WithTLS(pair, ca), pgtest.WithForcedTLS("verify-ca"))
	db := pg.Database(t)
	pg.Exec(t, pgtest.Superuser, db, "CREATE TABLE work (n int); GRANT ALL ON work TO app")
	ends := time.Now().Add(3 * time.Hour).Truncate(time.Second)
	own := ca.Issue(t, pgtest.Subject{Name: "fencepost", Hosts: []string{"localhost"}, Ends: ends})
	r := servicetest.Start(t, pg, secured(own, ca.Issue(t, pgtest.Subject{Name: "fencepost"}), ca))
	_, port, _ := net.SplitHostPort(r.Address())
	dsn := func(mode string) string {
		return fmt.Sprintf("postgres://%s@localhost:%s/%s?sslmode=%s&sslrootcert=%s&fencepost.resource=billing&fencepost.worker=a", pgtest.App, port, db, mode, ca.File)
	}
	ctx, cancel := context.WithTimeout(context.Background(), servicetest.Patience)
	defer cancel()
	var refused *pgconn.PgError
	if _, err := pgx.Connect(ctx, dsn("disable")); !errors.As(err, &refused) || refused.Code != "28000" || !strings.Contains(refused.Hint, "sslmode=require") {
		t.Errorf("a connection without TLS: %v", err)
	}
	conn, err := pgx.Connect(ctx, dsn("verify-full"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"INSERT INTO work VALUES (1)", "VACUUM work"} {
		if err := servicetest.Exec(t, conn, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	var plain, under int
	err = pg.Connect(t, pgtest.Superuser, db).QueryRow(ctx, `SELECT count(*) FILTER (WHERE NOT ssl), count(*) FILTER (WHERE ssl)
		FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE datname = current_database() AND usename <> 'postgres'`).Scan(&plain, &under)
	if err != nil || plain != 0 || under < 3 {
		t.Errorf("%d connections without TLS and %d under it, %v; want none, and the worker's, the fence's and the elector's", plain, under, err)
	}
	_, metrics := r.Ask(t, "/metrics")
	expires := regexp.MustCompile(`(?m)^fencepost_certificate_not_after_seconds{which="(upstream\.)?tls"} (\S+)$`).FindAllStringSubmatch(metrics, -1)
	if len(expires) != 2 {
		t.Fatalf("the metrics name %d certificates: %q", len(expires), expires)
	}
	if seconds, err := strconv.ParseFloat(expires[0][2], 64); err != nil || int64(seconds) != ends.Unix() {
		t.Errorf("the proxy's certificate expires at %s, %v; want %d", expires[0][2], err, ends.Unix())
	}
}

// TestReadinessAsksForTLS checks that a server whose TLS would be refused counts as
// unreachable.
func TestReadinessAsksForTLS(t *testing.T) {
	t.Parallel()
	s, ca, pair := pgtest.SharedTLS(t, 0)
	other := pgtest.NewAuthority(t)
	for want, c := range map[string]*pgtest.Authority{`"upstream":"ok"`: ca, "unknown authority": other} {
		r := servicetest.Start(t, s, func(cfg *config.Config) { secured(pair, pair, c)(cfg) })
		servicetest.Eventually(t, "/readyz to show "+want, func() bool { // a busy server may not answer in time
			code, body := r.Ask(t, "/readyz")
			return strings.Contains(strings.ReplaceAll(body, ": ", ":"), want) && (code == http.StatusOK) == (c == ca)
		})
	}
}

// TestReloadSaysWhichFileCannotBeUsed, as long as it cannot be.
func TestReloadSaysWhichFileCannotBeUsed(t *testing.T) {
	t.Parallel()
	s, ca, pair := pgtest.SharedTLS(t, 0)
	own := ca.Issue(t, pgtest.Subject{Name: "first", Hosts: []string{"localhost"}})
	r := servicetest.Start(t, s, secured(own, pair, ca))
	key, err := os.ReadFile(own.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(code int, says string) {
		t.Helper()
		out := runCommand(t, nil, "reload", "--admin", r.AdminAddress().String())
		if out.code != code || !strings.Contains(out.stdout, "no setting has changed") || !strings.Contains(out.stderr, says) {
			t.Errorf("code %d, want %d, and %q\n%s%s", out.code, code, says, out.stdout, out.stderr)
		}
		want := fmt.Sprintf("\nfencepost_config_last_reload_successful %d\n", 1-code)
		if _, metrics := r.Ask(t, "/metrics"); !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not have %q", want)
		}
		for _, flags := range [][]string{nil, {"--ready"}} {
			out := runCommand(t, nil, append([]string{"status", "--admin", r.AdminAddress().String()}, flags...)...)
			if strings.Contains(out.stdout, "reload failed: at ") != (code != exitOK) {
				t.Errorf("after a reload with code %d, status %v says\n%s", code, flags, out.stdout)
			}
		}
	}
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(own.KeyFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write([]byte("no key"))
	for range 2 {
		reload(exitFailure, own.KeyFile)
	}
	write(key)
	reload(exitOK, "")
	if err := os.Remove(own.KeyFile); err != nil {
		t.Fatal(err)
	}
	reload(exitFailure, own.KeyFile)
}

// TestServeNamesTheFileThatIsWrong checks that serve names an unusable file and does
// not start.
func TestServeNamesTheFileThatIsWrong(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fencepost.yml")
	const text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ntls: {mode: allow, cert_file: /nowhere/it.crt, key_file: /nowhere/it.key}"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out := runCommand(t, nil, "serve", "--config", path)
	if out.code != exitFailure || !strings.Contains(out.stderr, "/nowhere/it.crt") || !strings.Contains(out.stderr, "settings tls") {
		t.Errorf("exit code %d: %s", out.code, out.stderr)
	}
}
