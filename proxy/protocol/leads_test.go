package protocol_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy/protocol"
)

const mine = "insert into t (v) values ('mine')"

// each sends messages and returns the SQLSTATE of each answer, "" for one without an error.
func each(c *wiretest.Conn, messages ...[]byte) (codes []string) {
	for _, m := range messages {
		c.Send(m)
		for range owed(m) {
			codes = append(codes, wiretest.ErrorOf(c.Until('Z')))
		}
	}
	return codes
}

func expect(t *testing.T, c *wiretest.Conn, want []string, messages ...[]byte) {
	t.Helper()
	if got := each(c, messages...); !slices.Equal(got, want) {
		t.Errorf("answered by %q; want %q", got, want)
	}
}

// led returns the connection of a worker that has led, has sent these messages meanwhile, and is now what the harness says.
func (h *harness) led(before []byte) *wiretest.Conn {
	h.t.Helper()
	config, status := h.config, h.status.Load()
	h.config = func(c *protocol.Config) {
		if config != nil {
			config(c)
		}
		c.Announced, c.Registered = 9, true
	}
	h.lazy.Store(true)
	defer func() { h.config = config; h.lazy.Store(false) }()
	h.status.Store(leader(9))
	c := h.connect()
	c.Send(before)
	c.Until('Z')
	h.status.Store(status)
	return c
}

func (h *harness) rows(t *testing.T) int {
	return pgtest.Ask[int](t, h.pg, h.db, "select count(*)::int from t where v = 'mine'")
}

// fenced returns a harness with the tables.
func withTables(h *harness) {
	h.exec(tables)
	h.readCatalog()
}

// TestBecomingLeader: a follower that has become the leader is refused once, learns its epoch by that, and writes
// through the relay from the next transaction on.
func TestBecomingLeader(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		for name, first := range map[string][]byte{
			"simple": Q(mine), "extended": Batch(Run(mine)), "in one text": Q("begin; " + mine + "; commit"), "do": Q("do $$begin end$$"),
			"pipeline": Batch(Run("select 1"), Run(mine), Run(mine)), "read write": Q("begin read write; " + mine + "; commit"), "function": Batch(Run("create table x (a int)")),
		} {
			t.Run(name, func(t *testing.T) {
				h.in(t)
				h.status.Store(follower)
				h.exec("truncate t")
				h.announced, h.rejected = nil, nil
				c := h.connect()
				expect(t, c, []string{""}, Q("select * from c"))
				h.status.Store(leader(9))
				expect(t, c, []string{"ZF003"}, first)
				if !slices.Equal(h.announced, []protocol.AnnouncedEpoch{{Resource: "r", Epoch: 9}}) || len(h.rejected) != 1 || h.rejected[0].Kind != fencing.KindStartOver || !h.rejected[0].Write {
					t.Errorf("announced %v, rejected %+v", h.announced, h.rejected)
				}
				expect(t, c, []string{""}, Q("rollback"))
				expect(t, c, []string{"", "", ""}, Q(mine), Batch(Run(mine)), Q("show default_transaction_read_only"))
				if n := h.rows(t); n != 2 {
					t.Errorf("%d rows; want 2", n)
				}
			})
		}
	})
}

// TestWhatAnnounces: the answer to SHOW announces, and SET of the epoch, if nothing was pending.
func TestWhatAnnounces(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		for _, sql := range []string{"show fencepost.role", "SHOW Fencepost.Epoch", "set fencepost.epoch = 9", "set session fencepost.epoch to '9'"} {
			for how, send := range map[string][][]byte{
				"simple": {Q(sql)}, "extended": {Batch(Run(sql))}, "prepared": {Batch(Parse("s", sql), Desc('S', "s")), Batch(Bind("", "s"), Exec("", 0))},
				"pipeline": {Batch(Run("select 1"), Run(sql), Run("select 2"))}, "in a text": {Q("select 1; " + sql + "; select 2")}, "in a block": {Q("begin"), Q(sql), Q("commit")},
			} {
				h.status.Store(follower)
				c := h.connect()
				expect(t, c, []string{""}, Q("select 1"))
				h.status.Store(leader(9))
				for _, m := range send {
					if got := each(c, m); got[0] != "" {
						t.Errorf("%s %s: %q", sql, how, got)
					}
				}
				if got := each(c, Q(mine)); got[0] != "" {
					t.Errorf("%s %s: the write is answered by %q", sql, how, got)
				}
			}
		}
		for how, send := range map[string][]byte{
			"show and write in one piece": Cat(Q("show fencepost.role"), Q(mine)), "in one batch": Batch(Run("show fencepost.role"), Run(mine)),
			"in one text": Q("show fencepost.role; " + mine), "in batches": Cat(Batch(Run("show fencepost.epoch")), Batch(Run(mine))), "a wrong epoch": Cat(Q("set fencepost.epoch = 8"), Q(mine)),
			"another parameter": Cat(Q("show work_mem"), Q(mine)), "shown by a function": Cat(Q("select current_setting('fencepost.role')"), Q(mine)),
		} {
			h.status.Store(follower)
			h.exec("truncate t")
			c := h.connect()
			expect(t, c, []string{""}, Q("select 1"))
			h.status.Store(leader(9))
			if got := each(c, send); !slices.Contains(got, "ZF003") && how != "shown by a function" || h.rows(t) != 0 {
				t.Errorf("%s: answered by %q, %d rows", how, got, h.rows(t))
			}
		}
	})
}

// TestShowIsAnsweredByPostgres: with current values, however it is sent, and after RESET ALL, DISCARD ALL and ROLLBACK.
func TestShowIsAnsweredByPostgres(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		show := func(c *wiretest.Conn, want string, m []byte) {
			t.Helper()
			c.Send(m)
			for _, m := range c.Until('Z') {
				if m.Type == 'D' && !strings.HasSuffix(string(m.Body), want) {
					t.Errorf("shown %q; want %s", m.Body, want)
				}
				if m.Type == 'E' {
					t.Errorf("%v", m)
				}
			}
		}
		c := h.connect()
		each(c, Batch(Parse("s", "show fencepost.role"), Parse("e", "show fencepost.epoch")))
		ask := Batch(Bind("", "s"), Exec("", 0))
		for _, sql := range []string{"select 1", "reset all", "discard temp", "begin", "reset fencepost.epoch", "savepoint a", "rollback to a", "rollback"} {
			each(c, Q(sql))
			show(c, "follower", ask)
			show(c, "\x010", Q("show fencepost.epoch"))
			show(c, "w", Q("show fencepost.worker"))
			show(c, "r", Batch(Run("show fencepost.resource")))
		}
		each(c, Q("begin"))
		lapsed := *follower
		lapsed.Role, lapsed.Epoch = fencing.Leader, 3
		h.status.Store(&lapsed)
		show(c, "leader", ask)
		show(c, "\x013", Batch(Run("show fencepost.epoch")))
		h.status.Store(follower)
		show(c, "follower", ask)
		each(c, Q("rollback"))
		show(c, "follower", ask)
		each(c, Q("discard all"))
		show(c, "follower", Q("show fencepost.role"))
	})
}

// TestStatusIsReported: the client gets a ParameterStatus when its role or epoch changes.
func TestStatusIsReported(t *testing.T) {
	h := newHarness(t, 18)
	c := h.connect()
	h.status.Store(leader(9))
	var reported []string
	for _, m := range c.Exec("select 1") {
		if m.Type == 'S' {
			reported = append(reported, string(m.Body))
		}
	}
	if want := []string{"fencepost.role\x00leader\x00", "fencepost.epoch\x009\x00"}; !slices.Equal(reported, want) {
		t.Errorf("reported %q; want %q", reported, want)
	}
}

// TestCampaignOnDemand: what may write, and SHOW of the role, give the candidacy the chance to lead; reads do not.
func TestCampaignOnDemand(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		vacant := *follower
		vacant.Vacant = true
		asked := 0
		h.campaign = func() { asked++; h.status.Store(leader(9)) }
		for _, x := range []struct {
			send []byte
			asks int
			code string
		}{
			{Q("select 1"), 0, ""}, {Batch(Run("select * from c")), 0, ""}, {Q("begin read write; commit"), 0, ""}, {Q("show work_mem"), 0, ""}, {Q("show fencepost.worker"), 0, ""},
			{Q(mine), 1, "ZF003"}, {Batch(Run(mine)), 1, "ZF003"}, {Q("vacuum c"), 1, "ZF003"}, {Q("selec"), 1, "42601"}, {Q("show fencepost.role"), 1, ""}, {Q("select 1; show fencepost.epoch"), 1, ""},
		} {
			h.status.Store(&vacant)
			c := h.connect()
			asked = 0
			if got := each(c, x.send); got[0] != x.code || asked != x.asks {
				t.Errorf("%q: answered by %q, asked %d times; want %q and %d", x.send, got, asked, x.code, x.asks)
			}
		}
	})
}

// TestLeavingRestoresTheDefault: the leader has the default that the client has chosen.
func TestLeavingRestoresTheDefault(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		for _, x := range []struct {
			options string
			sql     []string
			want    string
		}{
			{"", nil, "off"}, {"-c default_transaction_read_only=on", nil, "on"},
			{"", []string{"set default_transaction_read_only = on"}, "on"}, {"", []string{"set session characteristics as transaction read only"}, "on"},
			{"", []string{"set session characteristics as transaction read only", "set session characteristics as transaction read write"}, "off"},
			{"-c default_transaction_read_only=on", []string{"set default_transaction_read_only = off"}, "off"},
			{"-c default_transaction_read_only=on", []string{"set default_transaction_read_only = off", "reset all"}, "on"},
			{"-c default_transaction_read_only=on", []string{"set default_transaction_read_only = off; discard plans", "discard all"}, "on"},
			{"", []string{"set default_transaction_read_only = on", "reset default_transaction_read_only"}, "off"},
			{"", []string{"select set_config('default_transaction_read_only', 'off', false)"}, "off"},
			{"", []string{"begin", "set local default_transaction_read_only = on", "commit"}, "off"},
		} {
			for _, extended := range []bool{false, true} {
				h.status.Store(follower)
				c := h.connect("options", x.options)
				for _, sql := range x.sql {
					if extended && !strings.Contains(sql, ";") {
						each(c, Batch(Run(sql)))
					} else {
						each(c, Q(sql))
					}
				}
				h.status.Store(leader(9))
				each(c, Q("show fencepost.role"))
				all := c.Exec("show default_transaction_read_only")
				if shown := string(all[len(all)-3].Body); !strings.HasSuffix(shown, x.want) {
					t.Errorf("%s %q: shown %q; want %s", x.options, x.sql, shown, x.want)
				}
			}
		}
	})
}

// TestRegistrationThatFails: the write gets the registry's refusal, a read passes, and the session stays settled.
func TestRegistrationThatFails(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.register = func() *fencing.Refusal { return &fencing.Refusal{SQLState: "ZF004", Message: "not registered"} }
		h.status.Store(leader(9))
		h.config = func(c *protocol.Config) { c.Announced = 9 }
		c := h.connect()
		expect(t, c, []string{"", "ZF004", "ZF004", "ZF004", "", "ZF004"}, Q("select 1"), Q("do $$begin end$$"), Q(mine), Batch(Run(mine)), Batch(Run("select 1")), Batch(Run("select 1"), Run(mine)))
		h.register = func() *fencing.Refusal { return nil }
		expect(t, c, []string{""}, Q(mine))
	})
}

// TestPreparedBefore: statements that were prepared before the session began cannot get a batch out of
// read-only mode, and before 16 cannot be used.
func TestPreparedBefore(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		h.exec("create function opens() returns text language sql as 'select set_config(''default_transaction_read_only'', ''off'', false)'")
		before := Batch(Parse("c", "commit"), Parse("b", "begin read write"), Parse("i", mine), Parse("o", "select opens()"), Parse("r", "set transaction read write"), Parse("d", "discard all"), Parse("p", "do $$begin set default_transaction_read_only = off; commit; "+mine+"; end$$"), Parse("n", "notify x"), Parse("s", "select 1"))
		connect := func() *wiretest.Conn { return h.led(before) }
		run := func(names ...string) (all []byte) {
			for _, n := range names {
				all = append(all, Cat(Bind("", n), Desc('P', ""), Exec("", 0))...)
			}
			return append(all, Sync()...)
		}
		for _, names := range [][]string{{"i"}, {"b", "i"}, {"o", "c", "i"}, {"o", "c", "b", "i"}, {"r", "i"}, {"o", "d", "i"}, {"o", "p", "i"}, {"p"}, {"n"}, {"s", "s", "i"}, {"b"}, {"o", "c", "b"}} {
			c := connect()
			got := each(c, run(names...), run("i"), Q(mine), Q("commit"))
			if h.rows(t) != 0 || got[0]+got[1] == "" {
				t.Errorf("%s: %q, %d rows", names, got, h.rows(t))
			}
		}
		if h.major >= 16 {
			c := connect()
			expect(t, c, []string{"", ""}, run("s", "s", "o", "s"), run("o", "c"))
			expect(t, c, []string{"ZF005", "26000", ""}, run("o", "c", "s"), run("unknown"), Q("execute s"))
			expect(t, c, []string{"ZF002", "ZF002", "ZF002", "ZF002", "ZF005"}, Q("execute n"), Batch(Run("execute p")), Q("execute i"), run(""), run("o", "c", "b", "s"))
			expect(t, c, []string{"", "", "", ""}, Batch(Run("select 1")), Q("prepare q as select 2"), Q("execute q"), run("q"))
		}
	})
}

// TestUnnamedStatementSurvives: what Fencepost sends between two messages of the client leaves its unnamed
// statement and portal alone.
func TestUnnamedStatementSurvives(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		c := h.connect()
		status := func(e fencing.Epoch) {
			st := *follower
			st.Role, st.Epoch, st.Fault = fencing.Follower, e, nil
			h.status.Store(&st)
			led := leader(e)
			h.status.Store(led)
		}
		expect(t, c, []string{""}, Batch(Parse("", "select 1")))
		status(9)
		expect(t, c, []string{"", ""}, Batch(Bind("", ""), Exec("", 0)), Q("begin"))
		expect(t, c, []string{""}, Batch(Parse("", "select * from c"), Bind("", ""), Exec("", 1)))
		status(10)
		expect(t, c, []string{"", "ZF005"}, Batch(Exec("", 1)), Batch(Bind("", ""), Exec("", 0), Run("commit"), Run("select 1")))
	})
}

// TestLapsedInAText: a lease that is confirmed in the middle of a text does not send the text again.
func TestLapsedInAText(t *testing.T) {
	h := newHarness(t, 18)
	withTables(h)
	lapsed := *leader(9)
	lapsed.Role, lapsed.Lapsed = fencing.Follower, true
	h.config = func(c *protocol.Config) { c.Announced = 9 }
	h.status.Store(&lapsed)
	c := h.connect()
	expect(t, c, []string{""}, Q("select 1"))
	n := 0
	h.dispatch = func() {
		if n++; n == 1 {
			h.status.Store(leader(9))
		}
	}
	all := c.Exec("begin; select 1; commit; select 2; begin; select 3; commit")
	if got := typesOf(all); got != "CTDCCTDCCTDCCZ" {
		t.Errorf("answered by %s", got)
	}
	expect(t, c, []string{""}, Q(mine))
}

func typesOf(all []wiretest.Message) (types string) {
	for _, m := range all {
		if m.Type != 'S' {
			types += string(m.Type)
		}
	}
	return types
}

// TestJoining: SET of a token or a resource asks the owner, alone and at rest only.
func TestJoining(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		var asked []protocol.JoinNeed
		h.join = func(n protocol.JoinNeed) (a protocol.Answer) {
			if asked = append(asked, n); n.Token == 5 {
				a.Refusal = &fencing.Refusal{SQLState: "ZF006", Message: "no"}
			}
			for _, name := range n.Resources {
				a.Chosen = append(a.Chosen, protocol.Candidacy{Resource: name, Incarnation: func() string { return "i" }, Status: h.status.Load})
			}
			return a
		}
		c := h.connect()
		expect(t, c, []string{"", "", "ZF006", "ZF006", "", "ZF005"}, Q("set fencepost.token = 3"), Batch(Run("set fencepost.token = 4")), Q("set fencepost.token = 5"), Batch(Run("set fencepost.token = '5'")), Q("set fencepost.resource = 'x'"), Q("set fencepost.token = 6"))
		if len(asked) != 5 {
			t.Errorf("asked for %+v", asked)
		}
		for _, m := range [][]byte{Q("select 1; set fencepost.token = 3"), Batch(Run("select 1"), Run("set fencepost.token = 3")), Q("set fencepost.token = 'x'"), Q("set fencepost.role = leader"), Q("set fencepost.nothing = 1")} {
			if got := each(c, m); got[0] == "" {
				t.Errorf("%q passes", m)
			}
		}
		if len(asked) != 5 {
			t.Errorf("asked for %+v", asked)
		}
	})
}

// TestFatalErrors end the session, as does a refusal under exit_on_error.
func TestFatalErrors(t *testing.T) {
	eachVersion(t, func(t *testing.T, h *harness) {
		withTables(h)
		c := h.connect()
		each(c, Q("set exit_on_error = on"))
		c.Send(Q("vacuum c"))
		if all := c.Rest(); len(all) != 1 || all[0].Fields()['C'] != "ZF002" || all[0].Fields()['V'] != "FATAL" {
			t.Errorf("%v", all)
		}
		c = h.connect()
		all := c.Exec("select pg_backend_pid()")
		if h.major < 16 {
			return
		}
		h.exec("select pg_terminate_backend(" + string(all[1].Body[6:]) + ")")
		if all := c.Rest(); len(all) != 1 || all[0].Fields()['C'] != "57P01" {
			t.Errorf("%v", all)
		}
	})
}
