package protocol

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
)

// step is what a client sends in one write, what it then waits for, and what
// happens beside it.
type step struct {
	send []byte
	// wait names the types of messages to read up to, in order: "ZZ" is two
	// ReadyForQuery. "$" is the end of the connection.
	wait string
	do   func(*session) // after that
}

// at is a step that sends and waits.
func at(wait string, parts ...[]byte) step { return step{send: Cat(parts...), wait: wait} }

// then is a step that does something else than send.
func then(do func(*session)) step { return step{do: do} }

// script is a client's part, run against Postgres and through Fencepost.
type script struct {
	name  string
	steps []step
}

func newScript(name string, steps ...step) script { return script{name: name, steps: steps} }

// session is a session in which a script runs, with an administrator's connection.
type session struct {
	t       *testing.T
	c       *wiretest.Conn
	address string // where the client has connected to
	key     []byte // body of its BackendKeyData
	admin   *pgx.Conn
	got     []wiretest.Message
}

// run sends the script on a new connection and returns the session with all that
// came back.
func (s script) run(t *testing.T, address string, admin *pgx.Conn, params ...string) *session {
	t.Helper()
	c, before := wiretest.Connect(t, address, params...)
	st := &session{t: t, c: c, address: address, admin: admin}
	for _, m := range before {
		if m.Type == 'K' {
			st.key = m.Body
		}
	}
	for _, p := range s.steps {
		if !st.perform(s.name, p) {
			return st
		}
	}
	if _, err := c.Write(wiretest.Terminate()); err == nil {
		st.got = append(st.got, c.Rest()...)
	}
	return st
}

// perform runs one step. It returns false when the connection ends unawaited.
func (st *session) perform(name string, p step) bool {
	st.t.Helper()
	if len(p.send) > 0 {
		_ = st.c.SetWriteDeadline(time.Now().Add(fixture.Patience))
		if _, err := st.c.Write(p.send); err != nil && !strings.Contains(p.wait, "$") {
			st.t.Fatalf("%s: send: %v", name, err)
		}
	}
	for _, typ := range p.wait {
		if !st.until(name, byte(typ)) && typ != '$' {
			return false
		}
	}
	if p.do != nil {
		p.do(st)
	}
	return true
}

// until reads up to a message of that type; false at the end of the connection.
func (st *session) until(name string, typ byte) bool {
	st.t.Helper()
	for {
		m, err := st.c.Next()
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			st.t.Fatalf("%s: waiting for %q: %v; before it:\n%s", name, typ, err, strings.Join(fixture.Lines(st.got), "\n"))
		}
		st.got = append(st.got, m)
		if m.Type == typ {
			return true
		}
	}
}

// pid is the session's backend.
func (st *session) pid() int { return int(binary.BigEndian.Uint32(st.key)) }

// sql runs statements on the connection beside the session.
func (st *session) sql(text string) {
	st.t.Helper()
	if _, err := st.admin.Exec(st.t.Context(), text); err != nil {
		st.t.Fatalf("%s: %v", text, err)
	}
}

// compareScripts runs every script against Postgres and through the proxy as
// leader, on the default version and on 18, and compares message by message,
// and the tables afterwards.
func compareScripts(t *testing.T, scripts ...script) {
	t.Helper()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		compareOn(t, pg, scripts...)
	})
}

// compareOn does that on one server.
func compareOn(t *testing.T, pg *pgtest.Server, scripts ...script) {
	t.Helper()
	p, db := fixture.NewProxy(t, pg, nil), pg.Database(t)
	direct, proxied := pg.Connect(t, pgtest.Superuser, pg.Database(t)), pg.Connect(t, pgtest.Superuser, db)
	fixture.LeaderConn(t, p, db)
	for _, s := range scripts {
		t.Run(strings.ReplaceAll(s.name, " ", "_"), func(t *testing.T) {
			compareScript(t, p, direct, proxied, s)
		})
	}
}

func compareScript(t *testing.T, p *fixture.Proxy, direct, proxied *pgx.Conn, s script) {
	t.Helper()
	for _, admin := range []*pgx.Conn{direct, proxied} {
		if _, err := admin.Exec(t.Context(), fixture.ResetTables); err != nil {
			t.Fatal(err)
		}
	}
	params := func(c *pgx.Conn) []string {
		return []string{"user", pgtest.App, "database", c.Config().Database, "client_encoding", "UTF8"}
	}
	want := fixture.Lines(s.run(t, p.PG.Addr(), direct, params(direct)...).got)
	own := append(params(proxied), "options", "-c fencepost.resource=r -c fencepost.worker=w")
	all := s.run(t, p.Addr, proxied, own...).got
	got := fixture.Lines(all)
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Errorf("message %d differs\nPostgres:\n  %s\nFencepost:\n  %s", i, strings.Join(want, "\n  "), strings.Join(got, "\n  "))
			break
		}
	}
	if w, g := fixture.Tables(t, direct), fixture.Tables(t, proxied); w != g {
		t.Errorf("tables differ: Postgres %s, Fencepost %s", w, g)
	}
}
