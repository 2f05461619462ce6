package protocol

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

var rewrite = flag.Bool("rewrite", false, "write transcripts.md, to be read before it is committed")

const (
	transcriptsDoc = "transcripts.md"
	docBegin       = "<!-- transcripts begin: go test ./test/protocol -run Transcripts -rewrite writes what follows -->\n"
)

// shown is one transcript of the page.
type shown struct {
	title, about string
	rows         string // of the tables of docs/protocol.md and stale-writes.md, in order
	major        int    // of the server; 0 for the default
	as           string // "" for a leader
	own          bool   // of Fencepost alone: Postgres would say something else
	before       string // SQL of an administrator
	steps        []step
}

// TestProtocolTranscripts: transcripts.md shows what Fencepost does, and what a
// leader's client sees in it is what Postgres itself says.
func TestProtocolTranscripts(t *testing.T) {
	t.Parallel()
	all := transcripts()
	made := make([]string, len(all))
	t.Run("play", func(t *testing.T) {
		t.Run("leader", func(t *testing.T) {
			t.Parallel()
			h := newDocCluster(t, shown{})
			for i, s := range all {
				if s.plain() {
					made[i] = s.page(t, h)
				}
			}
		})
		for i, s := range all {
			if !s.plain() {
				t.Run(strings.ReplaceAll(s.title, " ", "_"), func(t *testing.T) {
					t.Parallel()
					made[i] = s.page(t, newDocCluster(t, s))
				})
			}
		}
	})
	protocol := protocolRows(t)
	old, err := os.ReadFile(transcriptsDoc)
	if err != nil {
		t.Fatal(err)
	}
	head, _, ok := strings.Cut(string(old), docBegin)
	if !ok {
		t.Fatalf("%s has no place for transcripts", transcriptsDoc)
	}
	for _, s := range all {
		for _, row := range strings.Fields(s.rows) {
			if !strings.Contains(protocol, "\n| "+row+" |") {
				t.Errorf("%s: no page has the row %s", s.title, row)
			}
		}
	}
	page := head + docBegin + "\n" + strings.TrimSuffix(strings.Join(made, ""), "\n")
	switch {
	case page == string(old) || t.Failed():
	case *rewrite:
		if err := os.WriteFile(transcriptsDoc, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s says something else than Fencepost does: read the difference after go test ./test/protocol -run Transcripts -rewrite", transcriptsDoc)
		for i, s := range all {
			if !strings.Contains(string(old), made[i]) {
				t.Errorf("%s is now\n%s", s.title, made[i])
			}
		}
	}
}

// plain reports whether s needs no more than a leader at the default server.
func (s shown) plain() bool { return s.major == 0 && s.as == "" && s.before == "" }

// docCluster is where transcripts are run: a proxy before a tapped server, and two
// databases, one of which no proxy sees.
type docCluster struct {
	pg                  *pgtest.Server
	wire                *tap
	b                   *fixture.Proxy
	proxied, direct     *pgx.Conn
	proxiedDB, directDB string
}

func newDocCluster(t *testing.T, s shown) *docCluster {
	h := &docCluster{pg: pgtest.Shared(t)}
	if s.major != 0 {
		h.pg = pgtest.SharedMajor(t, s.major)
	}
	h.wire = newTap(t, h.pg.Addr())
	h.b = fixture.NewProxy(t, h.pg, func(c *proxy.Config) { c.Upstream = fixture.At(t, h.wire.addr, nil) })
	h.proxiedDB, h.directDB = h.pg.Database(t), h.pg.Database(t)
	h.proxied, h.direct = h.pg.Connect(t, pgtest.Superuser, h.proxiedDB), h.pg.Connect(t, pgtest.Superuser, h.directDB)
	return h
}

// clean makes both databases what a transcript begins with.
func (h *docCluster) clean(t *testing.T, before string) {
	for db, admin := range map[string]*pgx.Conn{h.proxiedDB: h.proxied, h.directDB: h.direct} {
		for _, sql := range []string{docTable, strings.ReplaceAll(before, "role app", "role app in database "+db)} {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// page runs s and returns what the page says of it.
func (s shown) page(t *testing.T, h *docCluster) string {
	h.clean(t, s.before)
	if s.as == "startup" {
		return s.text(s.startup(t, h))
	}
	c, server := s.enter(t, h)
	defer c.Close()
	server.take()
	st := &session{t: t, c: c, admin: h.proxied}
	var seen []wiretest.Message
	var out []string
	for _, p := range s.steps {
		st.perform(s.title, p)
		if p.do != nil {
			continue
		}
		if len(out) > 0 {
			out = append(out, "")
		}
		up, down := server.take()
		out = append(out, merge(">", clientLines(p.send), up)...)
		if s.as == "superseded" { // whether the last word of a server that is left is read depends on the moment
			down = slices.DeleteFunc(down, func(line string) bool { return kindOf(line) == "ReadyForQuery" })
		}
		out = append(out, merge("<", down, serverLines(st.got))...)
		seen, st.got = append(seen, st.got...), nil
	}
	if s.as == "" && !s.own {
		s.compare(t, h, seen)
	}
	return s.text(out)
}

func (s shown) text(out []string) string {
	return fmt.Sprintf("## %s\n\n%s (%s)\n\n```text\n%s\n```\n\n", s.title, s.about, strings.Join(strings.Fields(s.rows), ", "), strings.Join(out, "\n"))
}

// compare runs s against Postgres itself: the client must have seen the same.
func (s shown) compare(t *testing.T, h *docCluster, seen []wiretest.Message) {
	c, _ := wiretest.Connect(t, h.pg.Addr(), "user", pgtest.App, "database", h.directDB)
	defer c.Close()
	st := &session{t: t, c: c, admin: h.direct}
	for _, p := range s.steps {
		st.perform(s.title, p)
	}
	if want, got := strings.Join(fixture.Lines(st.got), "\n"), strings.Join(fixture.Lines(seen), "\n"); want != got {
		t.Errorf("%s: Postgres says\n%s\nnot\n%s", s.title, want, got)
	}
}

// enter connects in the standing that the transcript is about, and returns what
// the tap sees of the connection.
func (s shown) enter(t *testing.T, h *docCluster) (*wiretest.Conn, *tapped) {
	connect := func(worker string) (*wiretest.Conn, *tapped) {
		c, _ := wiretest.Connect(t, h.b.Addr, "user", pgtest.App, "database", h.proxiedDB, "fencepost.resource", "billing", "fencepost.worker", worker)
		return c, h.wire.last()
	}
	grant := func(worker string) { h.b.Candidacy(h.proxiedDB, "billing", worker).Grant() }
	first, server := connect("a")
	if candidacy := h.b.Candidacy(h.proxiedDB, "billing", "a"); !candidacy.Status().CanWrite() {
		grant("a")
	}
	switch s.as {
	case "untold":
		return first, server
	case "follower":
		return connect("b")
	case "superseded":
		c, server := connect("a")
		connect("b")
		grant("b")
		return c, server
	default:
		_ = first.Close()
		return connect("a")
	}
}

// startup is the transcript of a session's beginning.
func (s shown) startup(t *testing.T, h *docCluster) (out []string) {
	db := h.proxiedDB
	params := []string{"user", pgtest.App, "database", db, "fencepost.resource", "billing", "fencepost.worker", "host-7:4242"}
	_, before := wiretest.Connect(t, h.b.Addr, params...)
	up, down := h.wire.last().take()
	got := serverLines(before)
	for i, line := range got {
		if line == "BackendKeyData" {
			got[i] += " of the same process id, with a secret of Fencepost's"
		}
	}
	out = merge(">", clientLines(wiretest.Startup(params...)), up)
	for _, line := range merge("<", down, got) {
		if strings.HasPrefix(line, "< - DataRow ") {
			line = "< - DataRow of the time" // it is another one for each server
		}
		if !strings.HasPrefix(line, "<   ParameterStatus ") {
			out = append(out, line)
		}
	}
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], db, "app")
	}
	return out
}
