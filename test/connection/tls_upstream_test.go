package connection

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// TestCertificateOfPostgresIsVerified as far as the mode says; the client is told
// what is wrong in general, the log in full.
func TestCertificateOfPostgresIsVerified(t *testing.T) {
	t.Parallel()
	shared, ca, _ := pgtest.SharedTLS(t, 0)
	other := pgtest.NewAuthority(t)
	expired := pgtest.Start(t, pgtest.WithTLS(ca.Issue(t, pgtest.Subject{
		Name: "server", Hosts: []string{"localhost"}, Ends: time.Now().Add(-time.Hour),
	}), ca))
	const accepted = "the server's certificate is not accepted"
	for name, c := range map[string]struct {
		pg      *pgtest.Server
		cfg     pgtls.UpstreamConfig
		failure string // what the client is told
		logged  string
	}{
		"require":                   {shared, pgtls.UpstreamConfig{}, "", ""},
		"verify-ca":                 {shared, pgtls.UpstreamConfig{Verify: pgtls.VerifyCA, CAFile: ca.File}, "", ""},
		"verify-ca, another CA":     {shared, pgtls.UpstreamConfig{Verify: pgtls.VerifyCA, CAFile: other.File}, accepted, "unknown authority"},
		"verify-full":               {shared, pgtls.UpstreamConfig{Verify: pgtls.VerifyFull, CAFile: ca.File, ServerName: "localhost"}, "", ""},
		"verify-full, another name": {shared, pgtls.UpstreamConfig{Verify: pgtls.VerifyFull, CAFile: ca.File, ServerName: "db.example"}, accepted, "db.example"},
		"verify-full, the system's": {shared, pgtls.UpstreamConfig{Verify: pgtls.VerifyFull, ServerName: "localhost"}, accepted, "unknown authority"},
		"verify-full, expired":      {expired, pgtls.UpstreamConfig{Verify: pgtls.VerifyFull, CAFile: ca.File, ServerName: "localhost"}, accepted, "expired"},
		"a server without TLS":      {pgtest.Shared(t), pgtls.UpstreamConfig{}, "the server does not support SSL", "does not speak TLS"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			s := newSides(t, sidesConfig{pg: c.pg, ca: ca, upstream: func(u *pgtls.UpstreamConfig) { *u = c.cfg }})
			conn := s.secure(t, false)
			conn.Send(wiretest.Startup("user", pgtest.Superuser, "database", s.db))
			if c.failure != "" {
				f := fixture.FatalError(t, conn.Rest())
				if f['C'] != "57P03" || !strings.HasSuffix(f['M'], " [57P03]") || !strings.Contains(f['M'], c.failure) || !strings.Contains(f['H'], "upstream.tls") {
					t.Errorf("the client is told %v", f)
				}
				lines := s.log.FilterMessage("postgres not reachable").All()
				if len(lines) != 1 || !strings.Contains(fmt.Sprint(lines[0].ContextMap()["error"]), c.logged) {
					t.Errorf("the log says %v, want %q", lines, c.logged)
				}
				return
			}
			conn.Until('Z')
			if got := fixture.FirstValue(t, conn.Exec(upstreamTLS)); got != "t" {
				t.Errorf("the connection with Postgres is under TLS: %s", got)
			}
		})
	}
}

// TestWhatStandsBeforePostgresIsNotTrusted: no word in the clear gets into the
// connection, and silence is bounded.
func TestWhatStandsBeforePostgresIsNotTrusted(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string][]byte{
		"an error": wiretest.Msg('E', []byte("SFATAL\x00C53300\x00Mtoo many\x00\x00")), "a session in the clear": append([]byte("S"), wiretest.Msg('R', []byte{0, 0, 0, 0})...),
		"nonsense": []byte("x"), "silence": nil, "the end": {},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan struct{})
			go func() {
				defer close(over)
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.ReadFull(conn, make([]byte, 8))
				_, _ = conn.Write(answer)
				if name != "the end" {
					_, _ = io.Copy(io.Discard, conn)
				}
			}()
			s := newSides(t, sidesConfig{address: ln.Addr().String(), proxy: func(cfg *proxy.Config) {
				if name == "silence" { // The others answer, however long that takes.
					cfg.DialTimeout = time.Second
				}
			}})
			c := s.secure(t, false)
			c.Send(wiretest.Startup("user", pgtest.App, "database", s.db))
			if f := fixture.FatalError(t, c.Rest()); f['C'] != "57P03" || !strings.HasSuffix(f['M'], " [57P03]") || !strings.Contains(f['M'], "cannot reach Postgres by TLS") {
				t.Errorf("%v", f)
			}
			_ = ln.Close()
			<-over
		})
	}
}

// TestRenewedFilesNeedNoRestart: new connections get what is in the files, old
// ones go on, and files that do not fit change nothing.
func TestRenewedFilesNeedNoRestart(t *testing.T) {
	t.Parallel()
	other := pgtest.NewAuthority(t)
	roots := t.TempDir() + "/roots.crt"
	copyFile(t, other.File, roots)
	s := newSides(t, sidesConfig{upstream: func(u *pgtls.UpstreamConfig) { u.CAFile = roots }})
	shown := func() string {
		c := s.secure(t, false)
		defer c.Close()
		return c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	greets := func() bool {
		c := s.secure(t, false)
		defer c.Close()
		c.Send(wiretest.Startup("user", pgtest.App, "database", s.db))
		m, err := c.Next()
		return err == nil && m.Type == 'R'
	}
	if greets() {
		t.Fatal("the server's certificate was accepted under another authority")
	}
	copyFile(t, s.ca.File, roots)
	fixture.Eventually(t, "the server's authority to be known", greets)

	old := s.connect(t, "user", pgtest.App)
	s.ca.Renew(t, s.own, pgtest.Subject{Name: "renewed", Hosts: []string{"localhost"}})
	fixture.Eventually(t, "the new certificate", func() bool { return shown() == "renewed" })
	if err := os.WriteFile(s.own.CertFile, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	faults := func() int { return s.log.FilterMessage("TLS files not usable, the earlier ones hold").Len() }
	fixture.Eventually(t, "the broken file to be logged", func() bool { return shown() == "renewed" && faults() == 1 })
	if err := os.Remove(s.own.KeyFile); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, "the missing file to be logged", func() bool { return shown() == "renewed" && faults() == 2 })
	s.ca.Renew(t, s.own, pgtest.Subject{Name: "again", Hosts: []string{"localhost"}})
	fixture.Eventually(t, "the mended files", func() bool { return shown() == "again" })
	if faults() != 2 {
		t.Errorf("%d lines about broken files, want one for each", faults())
	}
	if got := fixture.FirstValue(t, old.Exec("select 42")); got != "42" {
		t.Errorf("the old connection says %s", got)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNothingFollowsATerminateUnderTLS: Postgres ends at a Terminate and reads nothing behind it, so that what follows,
// be it that TLS ends, would reset the connection and lose replies that are on their way.
func TestNothingFollowsATerminateUnderTLS(t *testing.T) {
	t.Parallel()
	var sent bytes.Buffer // to Postgres, over the last connection
	pg, ca, _ := pgtest.SharedTLS(t, 0)
	relay := fixture.NewRelay(t, "tcp", pg.Addr(), func() fixture.Passing {
		return fixture.Passing{ToServer: func(piece []byte) []byte { sent.Write(piece); return piece }}
	})
	s := newSides(t, sidesConfig{pg: pg, ca: ca, address: relay.Addr})
	records := func() (n int) {
		for rest := sent.Bytes()[len(wiretest.SSLRequest()):]; len(rest) > 0; n++ {
			rest = rest[5+int(binary.BigEndian.Uint16(rest[3:])):]
		}
		return n
	}
	c := s.connect(t, "user", pgtest.Superuser)
	fixture.MustExec(t, c, "select 1") // every record so far has passed the relay
	before := records()
	c.Send(wiretest.Terminate())
	if all := c.Rest(); len(all) > 0 {
		t.Errorf("the client is told %v", all)
	}
	relay.Wait()
	if n := records() - before; n != 1 {
		t.Errorf("%d records of TLS went to Postgres, want the one with the Terminate", n)
	}
}

// TestMuchUnderTLS: big results, big COPY in both directions, and many messages
// at once come through whole.
func TestMuchUnderTLS(t *testing.T) {
	t.Parallel()
	s := newSides(t, sidesConfig{major: 18})
	c := s.leads(t, "w")
	fixture.MustExec(t, c, "create table t (id int, v text)")
	c.Send(Q("copy t from stdin"))
	c.Until('G')
	var sent bytes.Buffer
	for i := 0; sent.Len() < 6<<20; i++ {
		line := fmt.Sprintf("%d\t%s\n", i, strings.Repeat("x", i*7919%30000))
		sent.WriteString(line)
		c.Send(wiretest.CopyData(line))
	}
	c.Send(wiretest.CopyDone())
	if all := c.Until('Z'); wiretest.ErrorOf(all) != "" {
		t.Fatalf("COPY FROM: %v", all)
	}
	for name, ask := range map[string][]byte{"copy": Q("copy (select * from t order by id) to stdout"), "rows": Q("select id || E'\\t' || v || E'\\n' from t order by id")} {
		c.Send(ask)
		var got bytes.Buffer
		for _, m := range c.Until('Z') {
			switch m.Type {
			case 'd':
				got.Write(m.Body)
			case 'D':
				got.Write(m.Body[6:])
			}
		}
		if !bytes.Equal(got.Bytes(), sent.Bytes()) {
			t.Errorf("%s: %d bytes, not the %d that were sent", name, got.Len(), sent.Len())
		}
	}
	const many = 1000
	c.Send(bytes.Repeat(Batch(Run("select repeat('y', 1000)")), many))
	for i := range many {
		if all := c.Until('Z'); len(fixture.FirstValue(t, all)) != 1000 {
			t.Fatalf("reply %d: %v", i, all)
		}
	}
	fixture.MustPass(t, c, Q("insert into t values (-1, '')"))
}
