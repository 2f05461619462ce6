package connection

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

func TestPsqlUnderTLS(t *testing.T) {
	t.Parallel()
	eachTLS(t, sidesConfig{}, func(t *testing.T, s *sides) {
		other := pgtest.NewAuthority(t)
		for name, c := range map[string]struct {
			settings string
			secured  bool
			failure  string
		}{
			"disable":                 {"sslmode=disable", false, ""},
			"prefer":                  {"sslmode=prefer", true, ""},
			"require":                 {"sslmode=require", true, ""},
			"verify-ca":               {"sslmode=verify-ca sslrootcert=" + s.ca.File, true, ""},
			"verify-full":             {"sslmode=verify-full sslrootcert=" + s.ca.File, true, ""},
			"another authority":       {"sslmode=verify-full sslrootcert=" + other.File, false, "certificate verify failed"},
			"1.2":                     {"sslmode=require ssl_max_protocol_version=TLSv1.2", true, ""},
			"1.1":                     {"sslmode=require ssl_max_protocol_version=TLSv1.1 ssl_min_protocol_version=TLSv1.1", false, "SSL error"},
			"direct, libpq 18":        {"sslmode=require sslnegotiation=direct", true, ""},
			"direct, full, libpq 18":  {"sslnegotiation=direct sslmode=verify-full sslrootcert=" + s.ca.File, true, ""},
			"verify-full of libpq 18": {"sslmode=verify-full sslrootcert=" + s.ca.File, true, ""},
		} {
			var env []string
			if strings.Contains(name, "libpq 18") {
				env = append(env, libpq18(t))
			}
			out, err := psqlTLS(t, s.Addr, s.db, "user="+pgtest.App+" "+c.settings, "\\conninfo", env...)
			switch {
			case c.failure != "":
				if err == nil || !strings.Contains(out, c.failure) {
					t.Errorf("%s: %v: %s", name, err, out)
				}
				continue
			case err != nil, strings.Contains(out, "SSL connection (protocol: TLSv1.") != c.secured:
				t.Errorf("%s: %v: %s", name, err, out)
			}
			if out, err := psqlTLS(t, s.Addr, s.db, "user="+pgtest.App+" "+c.settings, upstreamTLS, env...); err != nil || out != "t" {
				t.Errorf("%s: the connection with Postgres is under TLS: %s, %v", name, out, err)
			}
		}
	})
}

func TestPgxUnderTLS(t *testing.T) {
	t.Parallel()
	eachTLS(t, sidesConfig{}, func(t *testing.T, s *sides) {
		for _, params := range []string{"sslmode=require", "sslmode=verify-full&sslrootcert=" + s.ca.File, "sslmode=require&sslnegotiation=direct"} {
			_, port, _ := net.SplitHostPort(s.Addr)
			conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s@localhost:%s/%s?%s", pgtest.App, port, s.db, params))
			if err != nil {
				t.Errorf("%s: %v", params, err)
				continue
			}
			var n int
			if err := conn.QueryRow(t.Context(), "select $1::int + 1", 41).Scan(&n); err != nil || n != 42 {
				t.Errorf("%s: %d, %v", params, n, err)
			}
			if _, ok := conn.PgConn().Conn().(*tls.Conn); !ok {
				t.Errorf("%s: the connection is a %T", params, conn.PgConn().Conn())
			}
			_ = conn.Close(t.Context())
		}
	})
}

// TestRequiredTLS: without it there is a session for nobody, and the words are
// those of a Postgres that has hostssl lines alone.
func TestRequiredTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{client: func(c *pgtls.ClientsConfig) { c.Require = true }})
	forced := pgtest.Start(t, pgtest.WithTLS(s.server, s.ca), pgtest.WithForcedTLS(""))
	startup := wiretest.Startup("user", pgtest.App, "database", s.db)
	c, direct := wiretest.Dial(t, s.Addr), wiretest.Dial(t, forced.Addr())
	c.Send(startup)
	direct.Send(startup)
	got, want := fixture.FatalError(t, c.Rest()), fixture.FatalError(t, direct.Rest())
	if got['C'] != want['C'] || got['M'] != want['M'] || got['C'] != "28000" || !strings.Contains(got['H'], "sslmode=require") {
		t.Errorf("%v, Postgres says %v", got, want)
	}
	for settings, fails := range map[string]bool{"sslmode=disable": true, "sslmode=allow": false, "sslmode=prefer": false, "sslmode=require": false} {
		out, err := psqlTLS(t, s.Addr, s.db, "user="+pgtest.App+" "+settings, "select 42")
		if (err != nil) != fails || !fails && out != "42" {
			t.Errorf("%s: %v: %s", settings, err, out)
		}
	}
	// pgx goes from one to the other by the SQLSTATE.
	conn, err := pgx.Connect(t.Context(), fmt.Sprintf("postgres://%s@%s/%s?sslmode=allow", pgtest.App, s.Addr, s.db))
	if err != nil {
		t.Fatalf("pgx with sslmode=allow: %v", err)
	}
	_ = conn.Close(t.Context())
}

// TestCancelUnderTLS: a cancel request is taken on any connection, and goes to
// Postgres under TLS.
func TestCancelUnderTLS(t *testing.T) {
	t.Parallel()
	eachTLS(t, sidesConfig{client: func(c *pgtls.ClientsConfig) { c.Require = true }}, func(t *testing.T, s *sides) {
		admin := s.PG.Connect(t, pgtest.Superuser, s.db)
		c := s.secure(t, false)
		c.Send(wiretest.Startup("user", pgtest.App, "database", s.db))
		var key []byte
		for _, m := range c.Until('Z') {
			if m.Type == 'K' {
				key = m.Body
			}
		}
		for name, dial := range map[string]func() *wiretest.Conn{
			"in the clear":      func() *wiretest.Conn { return wiretest.Dial(t, s.Addr) },
			"by SSLRequest":     func() *wiretest.Conn { return s.secure(t, false) },
			"under TLS at once": func() *wiretest.Conn { return s.secure(t, true) },
		} {
			c.Send(Q("select pg_sleep(600)"))
			fixture.AwaitBackend(t, admin, "wait_event = 'PgSleep'")
			canceller := dial()
			canceller.Send(packet(codeCancel, key...))
			if said, err := io.ReadAll(canceller); err != nil || len(said) != 0 {
				t.Errorf("%s: answered by %q, %v", name, said, err)
			}
			if all := c.Until('Z'); wiretest.ErrorOf(all) != "57014" {
				t.Errorf("%s: %v", name, all)
			}
		}
		if got := fixture.FirstValue(t, c.Exec("select 1")); got != "1" {
			t.Errorf("the session after the cancels says %s", got)
		}
	})
}

// TestClientCertificates: in the words of pg_hba.conf, and with its answers.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	_, ca, _ := pgtest.SharedTLS(t, 0)
	good := ca.Issue(t, pgtest.Subject{Name: pgtest.App})
	other := ca.Issue(t, pgtest.Subject{Name: "somebody"})
	foreign := pgtest.NewAuthority(t).Issue(t, pgtest.Subject{Name: pgtest.App})
	expired := ca.Issue(t, pgtest.Subject{Name: pgtest.App, Ends: time.Now().Add(-time.Hour)})
	certificates := map[string]*pgtest.Pair{"none": nil, "good": &good, "other": &other, "foreign": &foreign, "expired": &expired}
	const pass, broken = "", "broken"
	for word, c := range map[string]struct {
		asked pgtls.ClientCert
		want  map[string]string
	}{
		"optional": {pgtls.ClientCertOptional, map[string]string{"none": pass, "good": pass, "other": pass, "foreign": broken, "expired": broken}},
		"verify-ca": {pgtls.ClientCertVerifyCA, map[string]string{
			"none": "connection requires a valid client certificate", "good": pass, "other": pass, "foreign": broken, "expired": broken,
		}},
		"verify-full": {pgtls.ClientCertVerifyFull, map[string]string{
			"none": "connection requires a valid client certificate", "good": pass,
			"other": `authentication failed for user "app"`, "foreign": broken, "expired": broken,
		}},
	} {
		t.Run(word, func(t *testing.T) {
			t.Parallel()
			s := newSides(t, sidesConfig{client: func(cfg *pgtls.ClientsConfig) {
				cfg.ClientCAFile, cfg.ClientCert, cfg.Require = ca.File, c.asked, c.asked != pgtls.ClientCertOptional
			}})
			addresses := map[string]string{"Fencepost": s.Addr}
			if word != "optional" {
				direct := pgtest.Start(t, pgtest.WithTLS(s.server, ca), pgtest.WithForcedTLS(word))
				direct.Exec(t, pgtest.Superuser, "postgres", "create database "+s.db)
				addresses["Postgres"] = direct.Addr()
			}
			for name, want := range c.want {
				for where, address := range addresses {
					settings := "sslmode=require user=" + pgtest.App
					if pair := certificates[name]; pair != nil {
						settings += " sslcert=" + pair.CertFile + " sslkey=" + pair.KeyFile
					}
					out, err := psqlTLS(t, address, s.db, settings, "select 42")
					switch {
					case want == pass && (err != nil || out != "42"),
						want == broken && (err == nil || !strings.Contains(out, "SSL error") && !strings.Contains(out, "alert")),
						want != pass && want != broken && (err == nil || !strings.Contains(out, want)):
						t.Errorf("%s, certificate %s: %v: %s", where, name, err, out)
					}
				}
			}
		})
	}
}
