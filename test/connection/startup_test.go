package connection

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// Requests in place of a startup packet.
const (
	codeCancel = 80877102
	codeSSL    = 80877103
	codeGSS    = 80877104
)

// packet is a packet without a type byte.
func packet(code uint32, body ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(binary.BigEndian.AppendUint32(b, code), body...)
}

// startupOf is a StartupMessage of any protocol version.
func startupOf(version uint32, params ...string) []byte {
	b := wiretest.Startup(params...)
	binary.BigEndian.PutUint32(b[4:], version)
	return b
}

// oneByte reads the answer to an SSLRequest or GSSENCRequest.
func oneByte(t *testing.T, c *wiretest.Conn) byte {
	t.Helper()
	var b [1]byte
	if _, err := c.Read(b[:]); err != nil {
		t.Fatalf("no answer to the request: %v", err)
	}
	return b[0]
}

func TestEncryptionIsDeclinedAndTheStartupContinues(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	c := wiretest.Dial(t, p.Addr)
	for _, code := range []uint32{codeGSS, codeSSL} {
		c.Send(packet(code))
		if got := oneByte(t, c); got != 'N' {
			t.Errorf("answer %q, want N", got)
		}
	}
	c.Send(wiretest.Startup("user", pgtest.App, "database", db))
	c.Until('Z')
	if got := fixture.FirstValue(t, c.Exec("select current_database()")); got != db {
		t.Errorf("connected to %s", got)
	}
	c = wiretest.Dial(t, p.Addr)
	c.Send(packet(codeSSL))
	oneByte(t, c)
	c.Send(packet(codeSSL))
	if f := fixture.FatalError(t, c.Rest()); f['C'] != "0A000" {
		t.Errorf("a second SSLRequest: %v, want 0A000 as from Postgres", f)
	}
}

// TestStartupInOneByteWrites: what arrives in pieces is one packet all the same.
func TestStartupInOneByteWrites(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	c := wiretest.Dial(t, p.Addr)
	for _, x := range packet(codeSSL) {
		c.Send([]byte{x})
	}
	oneByte(t, c)
	for _, x := range Cat(wiretest.Startup("user", pgtest.App, "database", db), Q("select 41 + 1")) {
		c.Send([]byte{x})
	}
	c.Until('Z')
	if got := fixture.FirstValue(t, c.Until('Z')); got != "42" {
		t.Errorf("a Query behind the startup, byte by byte: %s", got)
	}
}

func TestPostgresSeesNothingOfFencepost(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), nil)
	db := p.PG.Database(t)
	own := []string{"fencepost.resource", "r", "FencePost.Worker", "w", "fencepost.campaign", "on", "fencepost.worker_timeout", "1m"}
	byOption := []string{"options", `-c work_mem=5MB -c fencepost.resource=r --fencepost.worker=w -c application_name=two\ words\\ -cfencepost.campaign=on`}
	for name, params := range map[string][]string{
		"plain": append(own, "options", `-c work_mem=5MB -c application_name=two\ words\\`), "in options": byOption,
	} {
		c, before := wiretest.Connect(t, p.Addr, append([]string{"user", pgtest.App, "database", db}, params...)...)
		for sql, want := range map[string]string{
			"select count(*) from pg_settings where name like 'fencepost.%'":            "0",
			"select coalesce(current_setting('fencepost.campaign', true), '')":          "",
			"select current_setting('work_mem') || current_setting('application_name')": `5MBtwo words\`,
		} {
			if got := fixture.FirstValue(t, c.Exec(sql)); got != want {
				t.Errorf("%s: %s is %s, want %s", name, sql, got, want)
			}
		}
		if got := reported(before, "fencepost.worker"); got != "w" {
			t.Errorf("%s: the client was told worker %q", name, got)
		}
	}
}

// reported is the last value of a ParameterStatus.
func reported(all []wiretest.Message, name string) (v string) {
	for _, m := range all {
		if rest, ok := strings.CutPrefix(string(m.Body), name+"\x00"); ok && m.Type == 'S' {
			v = strings.TrimSuffix(rest, "\x00")
		}
	}
	return v
}

func TestStartupIsRefusedClearly(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	p := fixture.NewProxy(t, pg, nil)
	db := pg.Database(t)
	user := []string{"user", pgtest.App, "database", db}
	for name, c := range map[string]struct {
		params []string
		state  string
	}{
		"no user":              {[]string{"database", db}, "28000"},
		"unknown user":         {[]string{"user", "nobody_here", "database", db}, "28000"},
		"unknown database":     {[]string{"user", pgtest.App, "database", "nowhere"}, "3D000"},
		"database by the user": {[]string{"user", pgtest.App}, "3D000"},
		"bad setting":          {append(user, "work_mem", "much"), "22023"},
		"unknown setting":      {append(user, "nothing", "1"), "42704"},
		"unknown of ours":      {append(user, "fencepost.colour", "red"), "22023"},
		"worker, no resource":  {append(user, "fencepost.worker", "w"), "22023"},
		"replication":          {append(user, "replication", "true"), "ZF005"},
		"logical replication":  {append(user, "replication", "database"), "ZF005"},
	} {
		conn := wiretest.Dial(t, p.Addr)
		conn.Send(wiretest.Startup(c.params...))
		f := fixture.FatalError(t, conn.Rest())
		if f['C'] != c.state {
			t.Errorf("%s: %v, want %s", name, f, c.state)
		}
		if c.state == "3D000" || c.state == "42704" || name == "unknown user" || name == "bad setting" {
			direct := wiretest.Dial(t, pg.Addr())
			direct.Send(wiretest.Startup(c.params...))
			if want := fixture.FatalError(t, direct.Rest()); fmt.Sprint(want) != fmt.Sprint(f) {
				t.Errorf("%s: %v, Postgres says %v", name, f, want)
			}
		}
	}
	if c, _ := wiretest.Connect(t, p.Addr, append(user, "replication", "false")...); fixture.FirstValue(t, c.Exec("select 1")) != "1" {
		t.Error("replication=false is an ordinary connection")
	}
}

// TestNewerProtocolsAreNegotiatedByTheServer: 3.2 and what is newer still, and
// protocol options, get from Fencepost what they get from Postgres.
func TestNewerProtocolsAreNegotiatedByTheServer(t *testing.T) {
	t.Parallel()
	fixture.EachProxy(t, func(t *testing.T, p *fixture.Proxy, db string) {
		for name, first := range map[string][]byte{
			"3.2":                 startupOf(3<<16|2, "user", pgtest.App, "database", db),
			"3.9999":              startupOf(3<<16|9999, "user", pgtest.App, "database", db),
			"3.2 with an option":  startupOf(3<<16|2, "user", pgtest.App, "database", db, "_pq_.unknown", "1"),
			"3.0 with an option":  startupOf(3<<16, "user", pgtest.App, "database", db, "_pq_.unknown", "1", "_pq_.other", "2"),
			"3.2 with a resource": startupOf(3<<16|2, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "w"),
		} {
			direct, c := wiretest.Dial(t, p.PG.Addr()), wiretest.Dial(t, p.Addr)
			if strings.HasSuffix(name, "resource") {
				direct.Send(startupOf(3<<16|2, "user", pgtest.App, "database", db))
			} else {
				direct.Send(first)
			}
			c.Send(first)
			want, got := fixture.Greeting(direct.Until('Z')), fixture.Greeting(c.Until('Z'))
			if !slices.Equal(want, got) {
				t.Errorf("%s:\nPostgres:  %v\nFencepost: %v", name, want, got)
			}
			if got := fixture.FirstValue(t, c.Exec("select 42")); got != "42" {
				t.Errorf("%s: select 42 is %s", name, got)
			}
		}
		for name, first := range map[string][]byte{"2.0": startupOf(2<<16, "user", pgtest.App), "4.0": startupOf(4<<16, "user", pgtest.App)} {
			c := wiretest.Dial(t, p.Addr)
			c.Send(first)
			if f := fixture.FatalError(t, c.Rest()); f['C'] != "0A000" {
				t.Errorf("%s: %v, want 0A000", name, f)
			}
		}
	})
}

// TestAnAliasOfARoleHasItsMode: Postgres cuts names at 63 bytes, so a longer name is the
// same role, and gets around no setting of that role.
func TestAnAliasOfARoleHasItsMode(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	db := pg.Database(t)
	role := db + strings.Repeat("n", 63-len(db))
	pg.Exec(t, pgtest.Superuser, "postgres", "create role "+role+" login")
	t.Cleanup(func() { pg.Exec(t, pgtest.Superuser, "postgres", "drop role "+role) })
	p := fixture.NewProxy(t, pg, func(c *proxy.Config) {
		c.Policy = func(r fencing.JoinRequest) proxy.SessionPolicy {
			if r.User == role {
				return proxy.SessionPolicy{Unfenced: proxy.UnfencedRefuse}
			}
			return proxy.SessionPolicy{Unfenced: proxy.UnfencedAllow}
		}
	})
	for _, user := range []string{role, role + "more"} {
		fixture.MustEnd(t, wiretest.Dial(t, p.Addr), "ZF002", wiretest.Startup("user", user, "database", db))
	}
}

// TestAShortStatementTimeoutEndsNoStartup: the client's timeout hits none of what Fencepost asks the backend.
func TestAShortStatementTimeoutEndsNoStartup(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil)
	db := p.PG.Database(t)
	for i := range 20 {
		c := wiretest.Dial(t, p.Addr)
		c.Send(wiretest.Startup("user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", fmt.Sprint("w", i), "options", "-c statement_timeout=1"))
		for _, m := range c.Until('Z') {
			if m.Type == 'E' {
				t.Fatalf("connection %d gets %s", i, m)
			}
		}
		c.Close()
	}
}

// TestALoginRoleWithAnotherRoleWrites: ALTER ROLE SET role is how credentials that are made for an hour act as a group. Such a
// session may not see when its own backend was started.
func TestALoginRoleWithAnotherRoleWrites(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	login := s.DB + "_hourly"
	s.Exec(fmt.Sprintf(`create role "%[1]s" login in role app; alter role "%[1]s" set role = app; create table written (n int); grant all on written to app`, login))
	s.Grant("w")
	c := wiretest.Dial(t, s.Addr)
	c.Send(wiretest.Startup("user", login, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", "w"))
	c.Until('Z')
	fixture.MustPass(t, c, wiretest.Query("insert into written select 1 where current_user = 'app'"))
	if n := s.Number("select count(*) from written"); n != 1 {
		t.Errorf("%d rows were written", n)
	}
}

// TestAMemberOfTheControlRoleIsNoWorker: it could change the fence. It may connect without a resource.
func TestAMemberOfTheControlRoleIsNoWorker(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	direct, indirect := s.DB+"_direct", s.DB+"_indirect"
	s.Exec(fmt.Sprintf(`create role "%[1]s" login in role %[3]s; create role "%[2]s" login noinherit in role "%[1]s"`, direct, indirect, pgtest.Control))
	for _, user := range []string{direct, indirect} {
		start := []string{"user", user, "database", s.DB}
		c := wiretest.Dial(t, s.Addr)
		c.Send(wiretest.Startup(append(start, "fencepost.resource", "r", "fencepost.worker", "member")...))
		if e := fixture.FatalError(t, c.Rest()); e['C'] != fencing.StateNoFence || !strings.Contains(e['M'], "is a member of Fencepost's control role") {
			t.Errorf("%s is refused by %v", user, e)
		}
		if n := s.Elector.Candidacies(); n != 0 {
			t.Errorf("%s has become a candidate: there are %d", user, n)
		}
		c = wiretest.Dial(t, s.Addr)
		c.Send(wiretest.Startup(start...))
		c.Until('Z')
	}
}

// TestASuperuserInAnotherRoleIsRefused: the control role could not end its backend, whatever role the session has
// taken on, so that a grant could not end its transactions.
func TestASuperuserInAnotherRoleIsRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for _, options := range []string{"", "-c role=" + pgtest.App, "-c session_authorization=" + pgtest.App} {
		params := []string{"user", pgtest.Superuser, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", "super"}
		if options != "" {
			params = append(params, "options", options)
		}
		conn := wiretest.Dial(t, s.Addr)
		conn.Send(wiretest.Startup(params...))
		var refused string
		for _, m := range conn.Rest() {
			if m.Type == 'E' {
				refused = m.Fields()['C'] + " " + m.Fields()['M']
			}
		}
		if !strings.HasPrefix(refused, "ZF004") || !strings.Contains(refused, "is a superuser") {
			t.Errorf("with options %q: refused by %q", options, refused)
		}
	}
}
