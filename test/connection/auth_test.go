package connection

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// methods are the users of each way to authenticate.
var methods = []string{pgtest.App, "cleartext_user", "md5_user", "scram_user"}

// open lets every user in that Postgres lets in.
func open(cfg *proxy.Config) {
	cfg.Policy = nil // every user may connect, and read
}

// TestAuthenticationIsRelayedMessageByMessage compares what a client is asked
// and told with what Postgres itself asks and tells, but for keys and nonces. One
// without a resource is told besides that its transactions are read-only.
func TestAuthenticationIsRelayedMessageByMessage(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
	for _, user := range methods {
		for _, password := range []string{pgtest.Password, "wrong"} {
			want := authTranscript(t, pg.Addr(), db, user, password)
			if key := slices.Index(want, "K"); key >= 0 {
				want = slices.Insert(want, key, `S "default_transaction_read_only\x00on\x00"`)
			}
			got := authTranscript(t, p.Addr, db, user, password)
			if !slices.Equal(want, got) {
				t.Errorf("%s with %q:\nPostgres:  %v\nFencepost: %v", user, password, want, got)
			}
			if len(want) < 2 {
				t.Errorf("%s: the transcript is %v", user, want)
			}
		}
	}
}

// authTranscript answers as far as a client can without a library: cleartext
// and md5 to the end, SCRAM with its first message and then a wrong proof.
func authTranscript(t *testing.T, address, db, user, password string) (lines []string) {
	t.Helper()
	c := wiretest.Dial(t, address)
	c.Send(wiretest.Startup("user", user, "database", db))
	for {
		m, err := c.Next()
		if err != nil {
			return append(lines, "closed")
		}
		switch {
		case m.Type == 'K':
			lines = append(lines, "K")
			continue
		case m.Type == 'Z':
			return append(lines, m.String())
		case m.Type != 'R':
			lines = append(lines, m.String())
			continue
		}
		code := binary.BigEndian.Uint32(m.Body)
		lines = append(lines, fmt.Sprintf("R %d", code))
		switch code {
		case 3:
			c.Send(wiretest.Msg('p', []byte(password+"\x00")))
		case 5:
			c.Send(wiretest.Msg('p', []byte("md5"+hexMD5(hexMD5(password+user)+string(m.Body[4:8]))+"\x00")))
		case 10:
			lines = append(lines, fmt.Sprintf("%q", m.Body[4:]))
			first := "n,,n=,r=" + strings.Repeat("x", 18)
			c.Send(wiretest.Msg('p', []byte("SCRAM-SHA-256\x00"), binary.BigEndian.AppendUint32(nil, uint32(len(first))), []byte(first)))
		case 11:
			nonce, _, _ := strings.Cut(strings.TrimPrefix(string(m.Body[4:]), "r="), ",")
			c.Send(wiretest.Msg('p', []byte("c=biws,r="+nonce+",p="+strings.Repeat("A", 43)+"=")))
		}
	}
}

func hexMD5(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// TestWhoIsNotAuthenticatedBeginsNothing: no candidacy for a wrong password, and
// what is no answer to the server's question ends the connection.
func TestWhoIsNotAuthenticatedBeginsNothing(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
	start := wiretest.Startup("user", "scram_user", "database", db, "fencepost.resource", "r", "fencepost.worker", "intruder")
	for name, answer := range map[string][]byte{
		"a Query":             Q("select 1"),
		"a password too long": wiretest.Msg('p', make([]byte, 70000)),
		"a wrong password":    wiretest.Msg('p', []byte("SCRAM-SHA-256\x00\x00\x00\x00\x01x")),
		"a bad length":        {'p', 0, 0, 0, 1},
		"a huge length":       {'p', 0x7f, 0xff, 0xff, 0xff},
		"another mechanism":   wiretest.Msg('p', []byte("PLAIN\x00\x00\x00\x00\x00")),
		"goodbye":             wiretest.Terminate(),
	} {
		c := wiretest.Dial(t, p.Addr)
		c.Send(start)
		c.Until('R')
		c.Send(answer)
		if all := c.Rest(); name != "goodbye" && fixture.FatalError(t, all)['C'][:2] != "08" && fixture.FatalError(t, all)['C'][:2] != "28" {
			t.Errorf("%s: %v", name, all)
		}
	}
	if n := p.Elector.Candidacies(); n != 0 {
		t.Errorf("%d candidacies of clients that never authenticated", n)
	}
}

// TestKerberosIsRefusedAtOnce: a client would not answer the server's request, or not with what the server accepts.
func TestKerberosIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	pg := pgtest.Start(t)
	p, db := fixture.NewProxy(t, pg, open), pg.Database(t)
	prependRule(t, pg, pg.Connect(t, pgtest.Superuser, db), "host all "+pgtest.App+" all gss")
	fixture.Eventually(t, "Postgres to ask for a ticket", func() bool {
		c := wiretest.Dial(t, pg.Addr())
		defer c.Close()
		c.Send(wiretest.Startup("user", pgtest.App, "database", db))
		m, err := c.Next()
		return err == nil && m.Type == 'R' && binary.BigEndian.Uint32(m.Body) == 7
	})
	c := wiretest.Dial(t, p.Addr)
	c.Send(wiretest.Startup("user", pgtest.App, "database", db))
	if e := fixture.FatalError(t, c.Rest()); e['C'] != "28000" || !strings.Contains(e['M'], "Kerberos") || !strings.Contains(e['H'], "pg_hba.conf") {
		t.Errorf("the client gets %v", e)
	}
}
