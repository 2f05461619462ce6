package proxy_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	"github.com/fencepost/fencepost/proxy"
)

var rewrite = flag.Bool("rewrite", false, "write the transcripts into docs/protocol.md, to be read before it is committed")

const (
	protocolDoc = "../docs/protocol.md"
	docBegin    = "<!-- transcripts begin: go test ./proxy -run Transcripts -rewrite writes what stands between here and the end -->\n"
	docEnd      = "<!-- transcripts end -->\n"
)

// shown is one transcript of the page.
type shown struct {
	title, about string
	major        int    // of the server; 0 for the default
	as           string // "" for a leader
	own          bool   // of Fencepost alone: Postgres would say something else
	before       string // SQL of an administrator
	steps        []step
}

const docTable = `drop table if exists t; drop procedure if exists twice; create table t (id int primary key, v text); alter table t owner to app;
create procedure twice() language plpgsql as $$begin insert into t values (7); commit; insert into t values (8); end$$`

func transcripts() []shown {
	ins := func(id string) []byte { return run("insert into t values ($1)", id) }
	return []shown{
		{title: "Startup", as: "startup",
			about: "The client's parameters of Fencepost go no further. The checks are prepared before the client is let in; its ReadyForQuery comes when it knows its role. The server's own parameters are left out here."},
		{title: "A simple Query", about: "One statement of Fencepost's in front of the client's, in the client's own Query: they share the transaction, and the replies to the first are taken out.",
			steps: []step{at("Z", q("insert into t values (1)"))}},
		{title: "Extended messages", about: "Bind, Execute and Close of a named portal, in the same write as the client's messages. The client's unnamed statement and portal are not touched.",
			steps: []step{at("Z", ins("1"), sync_())}},
		{title: "A transaction is checked once", about: "BEGIN needs no check. The first statement that could do anything brings it, and the transaction holds it to its end.",
			steps: []step{at("Z", q("begin")), at("Z", q("select count(*) from t")), at("Z", q("insert into t values (1)")), at("Z", q("commit"))}},
		{title: "The isolation level comes before the check", about: "SET TRANSACTION must stand before any query of its transaction.",
			steps: []step{at("Z", q("begin")), at("Z", q("set transaction isolation level serializable")), at("Z", q("insert into t values (1)")), at("Z", q("commit"))}},
		{title: "Each transaction of one text", about: "A COMMIT inside a Query ends what the first check covers, so the write behind it has a check of its own. The position in the error is that in the client's text.",
			steps: []step{at("Z", q("insert into t values (1); commit; insert into t values (2); select nothing"))}},
		{title: "Many Syncs in flight, and an error", about: "While answers are outstanding nobody knows which transaction holds, so each batch has its own check. What the server skips behind an error, ours and the client's, is owed no reply.",
			steps: []step{at("ZZZ", ins("1"), sync_(), ins("1"), ins("2"), sync_(), ins("3"), sync_())}},
		{title: "A failed transaction", about: "Nothing is put in front in a transaction that has failed: only its end runs there.",
			steps: []step{at("Z", q("begin")), at("Z", q("select 1/0")), at("Z", q("insert into t values (1)")), at("Z", q("")), at("Z", q("rollback"))}},
		{title: "A portal in pieces", about: "PortalSuspended ends an Execute as CommandComplete does, and the write in pieces is one statement under one check.",
			steps: []step{at("Z", parse("", "insert into t select g from generate_series(1, 3) g returning id"), bind("p", ""), exec("p", 2), exec("p", 2), sync_())}},
		{title: "COPY with Sync right behind Execute", about: "The server ignores a Sync among COPY data. Whether it did is known when it has said CopyInResponse, not before.",
			steps: []step{at("G", parse("", "copy t from stdin"), bind("", ""), exec("", 0), sync_()), at("Z", wiretest.CopyData("1\tx\n"), wiretest.CopyDone(), sync_())}},
		{title: "COPY that fails late", about: "CopyData and CopyDone behind the error are dropped by the server and are owed nothing.",
			steps: []step{at("G", q("copy t from stdin")), at("Z", wiretest.CopyData("1\tx\nnonsense\n"), wiretest.CopyData("2\ty\n"), wiretest.CopyDone()), at("Z", q("select count(*) from t"))}},
		{title: "DISCARD ALL", about: "It passes bare, for behind anything else it would fail. The check is prepared anew in front of the next statement.",
			steps: []step{at("Z", q("discard all")), at("Z", q("insert into t values (1)"))}},
		{title: "What cannot share a transaction", about: "CALL, DO, VACUUM and their like go bare while the control connection has noted the backend. A procedure may commit inside.",
			steps: []step{at("Z", q("call twice()")), at("Z", q("vacuum t"))}},
		{title: "Texts that show texts", about: "The Query goes as Parse, Bind, Describe, Execute and Sync behind the check, so that the server sees the client's text alone.",
			steps: []step{at("Z", q("select current_query()"))}},
		{title: "A notification while idle, and a warning", about: "What the server says of its own accord passes in its place. A warning's position is put back like an error's.", before: "alter role app set standard_conforming_strings = off",
			steps: []step{at("Z", q("listen ch")), then(func(s *scene) { s.sql("notify ch, 'while idle'") }), at("A"), at("Z", q(`select 'it\'s'`))}},
		{title: "A Query in an open batch, on PostgreSQL 18", about: "Behind the Execute of a check, 18 would answer the Query and not commit it. Nothing of the client's has run in the batch, so a Sync of Fencepost's may end it.", major: 18,
			steps: []step{at("ZZ", parse("s", "insert into t values ($1)"), q("insert into t values (1)"), sync_())}},
		{title: "A follower reads", about: "A transaction of one who does not lead is made read-only.", as: "follower",
			steps: []step{at("Z", q("select count(*) from t")), at("Z", run("select count(*) from t"), sync_())}},
		{title: "A follower writes", about: "The check itself refuses, so the error stands where Postgres would put it, and the rest of the batch is skipped.", as: "follower",
			steps: []step{at("Z", q("insert into t values (1)")), at("ZZ", ins("1"), ins("2"), sync_(), run("select 1"), sync_())}},
		{title: "A superseded worker writes", about: "Another worker was granted a higher epoch, of which this proxy knows nothing yet. The database does. The error becomes FATAL, and the connection ends.", as: "superseded",
			steps: []step{at("$", run("begin"), ins("1"), run("commit"), sync_())}},
		{title: "A worker that became leader and was not told", about: "The first write is refused and tells; the next may write.", as: "untold",
			steps: []step{at("Z", q("insert into t values (1)")), at("Z", q("insert into t values (1)"))}},
		{title: "SHOW fencepost.role", own: true, about: "The server itself answers, behind a SET of Fencepost's: so it stands in its place, is described, and fails in a failed transaction like any other.",
			steps: []step{at("Z", q("show fencepost.role")), at("Z", run("show fencepost.epoch"), sync_())}},
		{title: "Two-phase commit", own: true, about: "Refused for everyone: a prepared transaction would outlive the session that was checked. A text that always fails takes its place, and its error is replaced.",
			steps: []step{at("Z", q("begin")), at("Z", q("insert into t values (1)")), at("Z", q("prepare transaction 'x'")), at("Z", q("rollback"))}},
		{title: "Terminate behind half a batch", about: "The server sees the same end as the client made. What was not followed by a Sync is not committed.",
			steps: []step{at("$", ins("1"), wiretest.Terminate())}},
	}
}

// TestProtocolTranscripts: docs/protocol.md shows what Fencepost does, and what a
// leader's client sees in it is what Postgres itself says.
func TestProtocolTranscripts(t *testing.T) {
	t.Parallel()
	all := transcripts()
	made := make([]string, len(all))
	t.Run("play", func(t *testing.T) {
		t.Run("leader", func(t *testing.T) {
			t.Parallel()
			h := newHouse(t, shown{})
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
					made[i] = s.page(t, newHouse(t, s))
				})
			}
		}
	})
	old, err := os.ReadFile(protocolDoc)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(old), docBegin)
	_, tail, ok2 := strings.Cut(rest, docEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for transcripts", protocolDoc)
	}
	page := head + docBegin + "\n" + strings.Join(made, "") + docEnd + tail
	switch {
	case page == string(old) || t.Failed():
	case *rewrite:
		if err := os.WriteFile(protocolDoc, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s says something else than Fencepost does: read the difference after go test ./proxy -run Transcripts -rewrite", protocolDoc)
		for i, s := range all {
			if !strings.Contains(string(old), made[i]) {
				t.Errorf("%s is now\n%s", s.title, made[i])
			}
		}
	}
}

// plain reports whether s needs no more than a leader at the default server.
func (s shown) plain() bool { return s.major == 0 && s.as == "" && s.before == "" }

// house is where transcripts are played: a proxy before a tapped server, and two
// databases, one of which no proxy sees.
type house struct {
	pg                  *pgtest.Server
	wire                *tap
	b                   *bench
	proxied, direct     *pgx.Conn
	proxiedDB, directDB string
}

func newHouse(t *testing.T, s shown) *house {
	h := &house{pg: pgtest.Shared(t)}
	if s.major != 0 {
		h.pg = pgtest.SharedMajor(t, s.major)
	}
	h.wire = newTap(t, h.pg.Addr())
	h.b = newBench(t, h.pg, func(c *proxy.Config) { c.Upstream = h.wire.addr })
	h.proxiedDB, h.directDB = h.pg.Database(t), h.pg.Database(t)
	h.proxied, h.direct = h.pg.Connect(t, pgtest.Superuser, h.proxiedDB), h.pg.Connect(t, pgtest.Superuser, h.directDB)
	return h
}

// clean makes both databases what a transcript begins with.
func (h *house) clean(t *testing.T, before string) {
	for db, admin := range map[string]*pgx.Conn{h.proxiedDB: h.proxied, h.directDB: h.direct} {
		for _, sql := range []string{docTable, strings.ReplaceAll(before, "role app", "role app in database "+db)} {
			if _, err := admin.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// page plays s and returns what the page says of it.
func (s shown) page(t *testing.T, h *house) string {
	h.clean(t, s.before)
	if s.as == "startup" {
		return s.text(s.startup(t, h))
	}
	c, server := s.enter(t, h)
	defer c.Close()
	server.take()
	st := &scene{t: t, c: c, admin: h.proxied}
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
	return fmt.Sprintf("### %s\n\n%s\n\n```text\n%s\n```\n\n", s.title, s.about, strings.Join(out, "\n"))
}

// compare plays s against Postgres itself: the client must have seen the same.
func (s shown) compare(t *testing.T, h *house, seen []wiretest.Message) {
	c, _ := wiretest.Connect(t, h.pg.Addr(), "user", pgtest.App, "database", h.directDB)
	defer c.Close()
	st := &scene{t: t, c: c, admin: h.direct}
	for _, p := range s.steps {
		st.perform(s.title, p)
	}
	if want, got := strings.Join(shownLines(st.got), "\n"), strings.Join(shownLines(seen), "\n"); want != got {
		t.Errorf("%s: Postgres says\n%s\nnot\n%s", s.title, want, got)
	}
}

// enter connects in the standing that the transcript is about, and returns what
// the tap sees of the connection.
func (s shown) enter(t *testing.T, h *house) (*wiretest.Conn, *tapped) {
	connect := func(worker string) (*wiretest.Conn, *tapped) {
		c, _ := wiretest.Connect(t, h.b.addr, "user", pgtest.App, "database", h.proxiedDB, "fencepost.resource", "billing", "fencepost.worker", worker)
		return c, h.wire.last()
	}
	grant := func(worker string) { h.b.seat(h.proxiedDB, "billing", worker).grant() }
	first, server := connect("a")
	if seat := h.b.seat(h.proxiedDB, "billing", "a"); !seat.Standing().May() {
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
func (s shown) startup(t *testing.T, h *house) (out []string) {
	db := h.proxiedDB
	params := []string{"user", pgtest.App, "database", db, "fencepost.resource", "billing", "fencepost.worker", "host-7:4242"}
	_, before := wiretest.Connect(t, h.b.addr, params...)
	up, down := h.wire.last().take()
	got := serverLines(before)
	for i, line := range got {
		if line == "BackendKeyData" {
			got[i] += " of the same process id, with a secret of Fencepost's"
		}
	}
	out = merge(">", clientLines(wiretest.Startup(params...)), up)
	for _, line := range merge("<", down, got) {
		if !strings.HasPrefix(line, "<   ParameterStatus ") {
			out = append(out, line)
		}
	}
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], db, "app")
	}
	return out
}
