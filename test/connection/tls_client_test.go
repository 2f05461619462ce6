package connection

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

func TestPsqlUnderTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{major: 18})
	other := pgtest.NewAuthority(t)
	for name, c := range map[string]struct {
		settings string
		secured  bool
		failure  string
	}{
		"disable":                 {"sslmode=disable", false, ""},
		"prefer":                  {"sslmode=prefer", true, ""},
		"verify-full":             {"sslmode=verify-full sslrootcert=" + s.ca.File, true, ""},
		"another authority":       {"sslmode=verify-full sslrootcert=" + other.File, false, "certificate verify failed"},
		"1.2":                     {"sslmode=require ssl_max_protocol_version=TLSv1.2", true, ""},
		"1.1":                     {"sslmode=require ssl_max_protocol_version=TLSv1.1 ssl_min_protocol_version=TLSv1.1", false, "SSL error"},
		"direct, full, libpq 18":  {"sslnegotiation=direct sslmode=verify-full sslrootcert=" + s.ca.File, true, ""},
		"verify-full of libpq 18": {"sslmode=verify-full sslrootcert=" + s.ca.File, true, ""},
	} {
		var env []string
		if strings.Contains(name, "libpq 18") {
			env = s.libpq
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
}

// TestCancelUnderTLS: a cancel request is taken on any connection, and goes to
// Postgres under TLS.
func TestCancelUnderTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{major: 0, client: func(c *pgtls.ClientsConfig) { c.Require = true }})
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
}

// TestClientCertificates: in the words of pg_hba.conf, and with the answers of Postgres.
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
			for name, want := range c.want {
				settings := "sslmode=require user=" + pgtest.App
				if pair := certificates[name]; pair != nil {
					settings += " sslcert=" + pair.CertFile + " sslkey=" + pair.KeyFile
				}
				out, err := psqlTLS(t, s.Addr, s.db, settings, "select 42")
				switch {
				case want == pass && (err != nil || out != "42"),
					want == broken && (err == nil || !strings.Contains(out, "SSL error") && !strings.Contains(out, "alert")),
					want != pass && want != broken && (err == nil || !strings.Contains(out, want)):
					t.Errorf("certificate %s: %v: %s", name, err, out)
				}
			}
		})
	}
}
