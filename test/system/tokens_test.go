package system

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// Configurations in which the application elects the leader of billing.
const (
	tokens          = "resources: {billing: {election: token}}\n"
	discardedTokens = "resources: {billing: {election: token, on_stale: discard}}\n"
)

// bears connects a worker that brings a token.
func (h *cluster) bears(p *process.Server, worker string, token int64, params ...string) (*client, error) {
	h.t.Helper()
	return h.tryJoin(process.Patience, p, worker, append(params, "token", fmt.Sprint(token))...)
}

func (h *cluster) mustBear(p *process.Server, worker string, token int64) *client {
	h.t.Helper()
	c, err := h.bears(p, worker, token)
	if err != nil {
		h.t.Fatalf("connect with token %d: %v", token, err)
	}
	return c
}

// ledger lists the tokens that were granted an epoch, in the order of the epochs.
func (h *cluster) ledger() string {
	h.t.Helper()
	return ask[string](h, `SELECT coalesce(string_agg(CASE WHEN source = 'token' THEN source_index::text ELSE source END, ' ' ORDER BY epoch), '')
		FROM fencepost.grants WHERE resource = $1`, resource)
}

// TestSafetyTheHigherTokenLeads: at two proxies, whatever the workers are called.
func TestSafetyTheHigherTokenLeads(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	q, _ := h.configured(tokens)
	first := h.mustBear(p, "a", 42)
	first.must("INSERT INTO work VALUES ('42')")
	same := h.mustBear(q, "b", 42)
	same.must("INSERT INTO work VALUES ('42 too')")
	for _, c := range []*client{first, same} {
		if role, epoch := c.show("role"), c.show("epoch"); role != "leader" || epoch != "1" {
			t.Errorf("a worker with token 42 is %s with epoch %s, want leader and 1", role, epoch)
		}
	}
	q.Await(t, "two workers have brought the same token: they share an epoch, and Fencepost cannot tell them apart", "worker", "b", "other", "a")

	if _, shown := q.Get(t, "/metrics"); strings.Contains(shown, "fencepost_grants_total{") {
		t.Error("a worker that shares the epoch of its token counts as granted one")
	}

	next := h.mustBear(q, "c", 43)
	next.must("INSERT INTO work VALUES ('43')")
	wantFailure(t, "a write under the lower token", first.exec("INSERT INTO work VALUES ('late')"), "ZF001")
	wantFailure(t, "a write under the lower token at the other proxy", same.exec("INSERT INTO work VALUES ('late')"), "ZF001")
	for _, token := range []int64{42, 41} {
		_, err := h.bears(p, "d", token)
		wantFailure(t, "a lower token at startup", err, "ZF001", fmt.Sprintf("its token %d is lower than the recorded token 43", token), "fencepost generation bump --tokens")
	}
	if works := h.works(); !slices.Equal(works, []string{"42", "42 too", "43"}) {
		t.Errorf("the rows are %v", works)
	}
	if ledger := h.ledger(); ledger != "42 43" {
		t.Errorf("epochs were granted to the tokens %s, want 42 43", ledger)
	}
	if incarnation := ask[string](h, "SELECT incarnation FROM fencepost.fence WHERE resource = $1", resource); !strings.HasPrefix(incarnation, "token:") || !strings.HasSuffix(incarnation, ":43") {
		t.Errorf("the incarnation is %s, want token:generation:43", incarnation)
	}
	process.Eventually(t, process.Patience, "the other proxy to show the leader", func() bool {
		_, shown := p.Get(t, "/v1/resources/"+h.db+"/billing")
		return strings.Contains(shown, `"leader": "c"`)
	})
	again := h.mustBear(p, "c", 44) // the same worker, elected again
	again.must("SHOW fencepost.role", "INSERT INTO work VALUES ('44')")
}

// TestWithoutATokenNoOneLeads, and what else is no token.
func TestWithoutATokenNoOneLeads(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	follower := h.join(p, "a")
	if role := follower.show("role"); role != "follower" {
		t.Errorf("without a token, the role is %s", role)
	}
	wantFailure(t, "a write without a token", follower.exec("INSERT INTO work VALUES ('none')"), "ZF002", "has brought no token", "fencepost.token=42")
	for _, c := range []struct {
		params []string
		says   []string
	}{
		{[]string{"token", "0"}, []string{"fencepost.token", "an integer from 1"}},
		{[]string{"token", "-1"}, []string{"fencepost.token"}},
		{[]string{"token", "9223372036854775808"}, []string{"fencepost.token"}},
		{[]string{"token", "next"}, []string{"fencepost.token"}},
		{[]string{"token", "7", "worker_timeout", "5s"}, []string{"has no leases"}},
		{[]string{"campaign", "wait"}, []string{"has brought no token"}},
		{[]string{"token", "7", "resource", "mail"}, []string{"elected by leases", "election: token"}},
	} {
		_, err := h.tryJoin(process.Patience, p, "b", c.params...)
		wantFailure(t, fmt.Sprint(c.params), err, "22023", c.says...)
	}
	_, err := h.plain(p, "token", "7")
	wantFailure(t, "a token without a resource", err, "22023", "fencepost.resource is not")
	waits, err := h.bears(p, "c", 9223372036854775807, "campaign", "wait")
	if err != nil {
		t.Fatalf("the highest token: %v", err)
	}
	waits.must("INSERT INTO work VALUES ('highest')")
	observer, err := h.bears(p, "d", 1, "campaign", "off")
	if err != nil {
		t.Fatalf("an observer with a lower token: %v", err)
	}
	if role := observer.show("role"); role != "follower" {
		t.Errorf("an observer is %s", role)
	}
	if ledger := h.ledger(); ledger != "9223372036854775807" {
		t.Errorf("epochs were granted to the tokens %s", ledger)
	}
}

// TestSafetyATokenThatWasTooHigh: an operator lets lower ones pass again, and whoever had one of
// the old generation is superseded at once.
func TestSafetyATokenThatWasTooHigh(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	right := h.mustBear(p, "a", 43)
	wrong := h.mustBear(p, "b", 999999999)
	wrong.must("INSERT INTO work VALUES ('wrong')")
	shares := h.mustBear(p, "shares", 999999999)
	_, err := h.bears(p, "c", 44)
	wantFailure(t, "the right token", err, "ZF001", "its token 44 is lower than the recorded token 999999999", "generation bump --tokens")

	code, out := h.command("generation", "bump", "--tokens", "--database", h.db)
	if code != 0 || !strings.Contains(out, "worker b with token 999999999 is superseded; nobody holds epoch 3") ||
		!strings.Contains(out, "worker shares led resource billing by the same token") || !strings.Contains(out, "of tokens has begun") {
		t.Fatalf("generation bump --tokens: code %d, %s", code, out)
	}
	for what, c := range map[string]*client{"43": right, "999999999": wrong, "999999999, which it shares": shares} {
		wantFailure(t, "a write under token "+what, c.exec("INSERT INTO work VALUES ('late')"), "ZF001")
	}
	h.mustBear(p, "c", 44).must("INSERT INTO work VALUES ('44')")
	h.mustBear(p, "d", 45).must("INSERT INTO work VALUES ('45')")
	if ledger, works := h.ledger(), h.works(); ledger != "43 999999999 operator 44 45" || !slices.Equal(works, []string{"wrong", "44", "45"}) {
		t.Errorf("epochs were granted to the tokens %s, and the rows are %v", ledger, works)
	}
	for _, args := range [][]string{{"--tokens"}, {"--tokens", "--database", h.db, "--restored"}} {
		if code, out := h.command(append([]string{"generation", "bump"}, args...)...); code != 2 {
			t.Errorf("generation bump %v: code %d, %s", args, code, out)
		}
	}
}

// setToken brings a token in a session, by the simple or the extended protocol.
func (c *client) setToken(token int64, extended bool) error {
	sql := fmt.Sprintf("SET fencepost.token = '%d'", token)
	if !extended {
		return c.exec(sql)
	}
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	return c.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Read().Err
}

// TestSafetyATokenIsSetInASession: a worker that was elected while it is connected leads from
// then on, and whoever has a lower token does not.
func TestSafetyATokenIsSetInASession(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	q, _ := h.configured(tokens)
	a, b, lower := h.join(p, "a"), h.join(q, "b"), h.join(p, "c")
	set := func(c *client, token int64) {
		t.Helper()
		if err := c.setToken(token, token%2 == 0); err != nil {
			t.Fatalf("set token %d: %v", token, err)
		}
	}
	leads := func(c *client, epoch string) {
		t.Helper()
		if role, shown := c.PgConn().ParameterStatus("fencepost.role"), c.PgConn().ParameterStatus("fencepost.epoch"); role != "leader" || shown != epoch {
			t.Errorf("the client is told that it is %s with epoch %s, want leader and %s", role, shown, epoch)
		}
	}
	wantFailure(t, "a write without a token", a.exec("INSERT INTO work VALUES ('none')"), "ZF002", "SET fencepost.token")
	set(a, 42)
	leads(a, "1")
	a.must("INSERT INTO work VALUES ('42')")
	set(a, 42)
	a.must("INSERT INTO work VALUES ('42 again')")
	set(b, 43)
	leads(b, "2")
	b.must("INSERT INTO work VALUES ('43')")
	wantFailure(t, "a write under the lower token", a.exec("INSERT INTO work VALUES ('late')"), "ZF001")
	pooled := h.mustBear(q, "b", 43)
	set(b, 44)
	leads(b, "3")
	b.must("INSERT INTO work VALUES ('44')")
	wantFailure(t, "a connection of the same worker with its earlier token", pooled.exec("INSERT INTO work VALUES ('late')"), "ZF001")
	wantFailure(t, "a lower token", lower.setToken(43, false), "ZF001", "its token 43 is lower than the recorded token 44", "generation bump --tokens")
	if !lower.IsClosed() {
		t.Error("the connection with a lower token goes on")
	}
	p.Await(t, "session ended: its client has set a lower token")
	if works := h.works(); !slices.Equal(works, []string{"42", "42 again", "43", "44"}) {
		t.Errorf("the rows are %v", works)
	}
	if ledger := h.ledger(); ledger != "42 43 44" {
		t.Errorf("epochs were granted to the tokens %s, want 42 43 44", ledger)
	}
}

// TestATokenIsSetAlone, outside a transaction; and a SET that is refused changes nothing.
func TestATokenIsSetAlone(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured("resources: {billing: {election: token, max_jump: 10}}\n")
	c := h.mustBear(p, "a", 42)
	_, err := h.bears(p, "b", 53)
	wantFailure(t, "a token that is too high at startup", err, "ZF006", "token 53", "the recorded token 42 by more than 10", "raise max_jump", "generation bump --tokens")
	for _, extended := range []bool{false, true} {
		c.must("BEGIN")
		wantFailure(t, "in a block", c.setToken(43, extended), "25001", "inside a transaction", "before BEGIN")
		c.must("ROLLBACK")
		wantFailure(t, "a token that is too high", c.setToken(53, extended), "ZF006", "exceeds the recorded token 42 by more than 10")
	}
	for sql, want := range map[string][]string{
		"SET fencepost.token = '43'; INSERT INTO work VALUES ('together')": {"25001", "together with other statements"},
		"SET LOCAL fencepost.token = '43'":                                 {"55P02", "SET without LOCAL"},
		"SET fencepost.token = 'next'":                                     {"22023", "an integer from 1"},
		"SET fencepost.token = -1":                                         {"22023", "an integer from 1"},
		"SET fencepost.token TO DEFAULT":                                   {"22023", "an integer from 1"},
		"RESET fencepost.token":                                            {"22023", "an integer from 1"},
	} {
		wantFailure(t, sql, c.exec(sql), want[0], want[1:]...)
	}
	c.must("INSERT INTO work VALUES ('42')", "SET fencepost.token = 43", "INSERT INTO work VALUES ('43')")
	if ledger, works := h.ledger(), h.works(); ledger != "42 43" || !slices.Equal(works, []string{"42", "43"}) {
		t.Errorf("epochs were granted to the tokens %s, and the rows are %v", ledger, works)
	}

	mail := h.join(p, "m", "resource", "mail", "campaign", "wait")
	wantFailure(t, "a resource with leases", mail.setToken(1, false), "22023", "elected by leases", "election: token")
	mail.must("INSERT INTO work VALUES ('mail')")
	none, err := h.plain(p)
	if err != nil {
		t.Fatal(err)
	}
	wantFailure(t, "no resource", none.setToken(1, false), "55P02", "after connection start")
}

// batches sends each statement in a batch of its own, without waiting for an answer in between.
func (c *client) batches(statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	pipe := c.PgConn().StartPipeline(ctx)
	for _, sql := range statements {
		pipe.SendQueryParams(sql, nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			return err
		}
	}
	return pipe.Close()
}

// TestATokenIsSetInAPipeline: what follows it, unread, goes by it; what came before does not.
func TestATokenIsSetInAPipeline(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	c := h.mustBear(p, "a", 42)
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	if err := c.batches("INSERT INTO work VALUES ('42')", "SET fencepost.token = '43'", "INSERT INTO work VALUES ('43')"); err != nil {
		t.Errorf("three batches: %v", err)
	}
	pipe := c.PgConn().StartPipeline(ctx)
	for _, sql := range []string{"SET fencepost.token = '44'", "INSERT INTO work VALUES ('too early')"} {
		pipe.SendQueryParams(sql, nil, nil, nil, nil)
	}
	wantFailure(t, "a write in the batch of the SET", errors.Join(pipe.Sync(), pipe.Close()), "ZF005")
	c.must("INSERT INTO work VALUES ('44')")
	pipe = c.PgConn().StartPipeline(ctx)
	for _, sql := range []string{"INSERT INTO work VALUES ('not there')", "SET fencepost.token = '45'"} {
		pipe.SendQueryParams(sql, nil, nil, nil, nil)
	}
	wantFailure(t, "behind a statement of its batch", errors.Join(pipe.Sync(), pipe.Close()), "25001")
	// The takeover does not end the backend of its own session, whose registration is over.
	if err := c.batches("DO $$BEGIN INSERT INTO work VALUES ('44'); END$$", "SET fencepost.token = '45'", "INSERT INTO work VALUES ('45')"); err != nil {
		t.Errorf("a pipeline of DO, SET and INSERT: %v", err)
	}
	epochs := ask[string](h, "SELECT string_agg(w.what || ' ' || g.epoch, ', ' ORDER BY g.epoch) FROM work w JOIN fencepost.grants g ON g.source_index::text = w.what")
	if ledger := h.ledger(); ledger != "42 43 44 45" || epochs != "42 1, 43 2, 44 3, 44 3, 45 4" {
		t.Errorf("epochs were granted to the tokens %s, and the rows are %s", ledger, epochs)
	}
}

// TestTheSameTokenAgain asks nobody, so nothing can keep the worker from leading.
func TestTheSameTokenAgain(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	c := h.mustBear(p, "a", 42)
	locked := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := locked.Exec(t.Context(), "BEGIN; LOCK TABLE fencepost.fence"); err != nil {
		t.Fatal(err)
	}
	if err := c.setToken(42, true); err != nil {
		t.Errorf("the same token, while the fence cannot be read: %v", err)
	}
	if _, err := locked.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	c.must("INSERT INTO work VALUES ('42')")
}

// TestSafetyATokenIsNotKnownToAConnectionThatSendsAgain: under discard, a session that was
// superseded and has set a higher token is superseded again. A connection of its worker that is
// opened after that may send again what the session could not write.
func TestSafetyATokenIsNotKnownToAConnectionThatSendsAgain(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", patient, onServer(pgtest.SharedMajor(t, 18))) // 15 discards nothing
	p, _ := h.configured(discardedTokens)
	q, _ := h.configured(discardedTokens)
	a := h.mustBear(p, "w", 10)
	a.must("INSERT INTO work VALUES ('10')")
	h.mustBear(q, "v", 11).must("INSERT INTO work VALUES ('11')")
	a.must("UPDATE work SET what = 'discarded'")
	if err := a.setToken(20, false); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, "the first write under 20", a.exec("INSERT INTO work VALUES ('early')"), "ZF003")
	a.must("INSERT INTO work VALUES ('20')")
	h.mustBear(q, "v2", 21).must("INSERT INTO work VALUES ('21')")
	b := h.mustBear(p, "w", 22)
	wantFailure(t, "the first write of a worker that was superseded", b.exec("INSERT INTO work VALUES ('b')"), "ZF003")
	b.must("INSERT INTO work VALUES ('22')")
	wantFailure(t, "a stale TRUNCATE", a.exec("TRUNCATE work"), "ZF001")
	wantFailure(t, "its own token again", a.setToken(20, true), "ZF001", "its token 20 is lower than the recorded token 22")
	again := h.mustBear(p, "w", 22)
	wantFailure(t, "what is sent again", again.exec("INSERT INTO work VALUES ('again')"), "ZF003")
}

// TestWhatAnOrderKeptFromLeadingIsNotDiscarded: a worker that brings the token of the leader has not led while an order
// keeps it from that, so under discard too its writes fail, for as long as the token leads and after that.
func TestWhatAnOrderKeptFromLeadingIsNotDiscarded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		where     string
		ledBefore bool // by the same token, before a pause
	}{{"at the leader's proxy", false}, {"at another one", true}} {
		t.Run(fmt.Sprintf("%s, led before: %t", c.where, c.ledBefore), func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", patient, onServer(pgtest.SharedMajor(t, 18))) // 15 discards nothing
			p, _ := h.configured(discardedTokens)
			q := p
			if c.where != "at the leader's proxy" {
				q, _ = h.configured(discardedTokens)
			}
			if c.ledBefore {
				h.mustBear(q, "w", 6).must("SELECT 1")
				h.order("resource billing is paused", "pause", resource)
				h.order("resource billing is not paused any more", "resume", resource)
			}
			v := h.mustBear(p, "v", 6)
			v.must("INSERT INTO work VALUES ('6')")
			h.order("worker w may not campaign for resource billing until", "evict", resource, "--worker", "w", "--for", "10m")
			w := h.mustBear(q, "w", 6)
			process.Eventually(t, process.Patience, "the refusal to name the order", func() bool {
				err := w.exec("INSERT INTO work VALUES ('w')")
				wantFailure(t, "a write that an order forbids", err, "ZF002")
				return strings.Contains(err.Error(), "may not campaign until")
			})
			h.awaitState("led", "v", p, q)
			if role, epoch := w.show("role"), w.show("epoch"); role != "follower" || epoch != "0" {
				t.Errorf("it is %s with epoch %s, want a follower without one", role, epoch)
			}
			h.mustBear(p, "x", 7).must("INSERT INTO work VALUES ('7')")
			v.must("INSERT INTO work VALUES ('discarded')")
			if state := stateOf(w.exec("INSERT INTO work VALUES ('w')")); state != "ZF001" && state != "ZF002" { // for the token, or for the order
				t.Errorf("its write after another token is answered by %q", state)
			}
			h.order("worker w of resource billing may campaign again", "resume", resource, "--worker", "w")
			again := h.mustBear(q, "w", 8)
			if c.ledBefore {
				wantFailure(t, "its first write after it was superseded", again.exec("INSERT INTO work VALUES ('w')"), "ZF003")
			}
			again.must("INSERT INTO work VALUES ('8')")
			if got := ask[string](h, "SELECT string_agg(what, ' ' ORDER BY what) FROM work"); got != "6 7 8" {
				t.Errorf("the table has %s, want 6 7 8", got)
			}
		})
	}
}

// TestATokenCountsFromAnyAddress: an elector may move a worker's id to another host before the
// old one has noticed.
func TestATokenCountsFromAnyAddress(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens + "proxy_protocol: {trusted: 127.0.0.1}\n")
	from := func(host int, token int64) *client {
		t.Helper()
		header := fmt.Sprintf("PROXY TCP4 192.0.2.%d 127.0.0.1 5000 6432\r\n", host)
		c, err := h.named(p, "", header, "resource", resource, "worker", "w", "token", fmt.Sprint(token))
		if err != nil {
			t.Fatalf("token %d from host %d: %v", token, host, err)
		}
		return c
	}
	old := from(1, 50)
	next, same := from(2, 51), from(3, 51)
	for _, c := range []*client{next, same} {
		if role, epoch := c.show("role"), c.show("epoch"); role != "leader" || epoch != "2" {
			t.Errorf("a worker with token 51 is %s with epoch %s, want leader and 2", role, epoch)
		}
	}
	wantFailure(t, "a write from the old host", old.exec("INSERT INTO work VALUES ('late')"), "ZF001")
}

// TestWhoComesDuringAPauseWasNotSuperseded: a connection that brings the token in force will lead
// after the pause, so its writes are refused until then, and never discarded.
func TestWhoComesDuringAPauseWasNotSuperseded(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(discardedTokens)
	q, _ := h.configured(discardedTokens)
	h.mustBear(p, "a", 42).must("INSERT INTO work VALUES ('42')")
	h.order("resource billing is paused", "pause", resource)
	for _, c := range []*client{h.mustBear(p, "a", 42), h.mustBear(q, "a", 42), h.mustBear(p, "never led", 42)} {
		wantFailure(t, "a write", c.refusal(`"ops" paused the resource at`), "ZF002", `"ops" paused the resource at`, "fencepost resume billing")
	}
	h.order("resource billing is not paused any more", "resume", resource)
	again := h.mustBear(q, "a", 42)
	mustLead(t, again, "the token in force")
	again.must("INSERT INTO work VALUES ('42 again')")
	if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'refused'"); n != 0 {
		t.Errorf("%d rows were written during the pause", n)
	}
}

// TestSafetyATokenLeadsAgainAfterAPause, also at another proxy, and an eviction ends it for good.
func TestSafetyATokenLeadsAgainAfterAPause(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	q, _ := h.configured(tokens)
	leader, idle := h.mustBear(p, "a", 42), h.mustBear(q, "b", 42)
	leader.must("INSERT INTO work VALUES ('42')")
	h.order("resource billing is paused", "pause", resource)
	wantFailure(t, "the leader's write", leader.exec("INSERT INTO work VALUES ('paused')"), "ZF001", "An operator ended")
	_, err := h.bears(p, "a", 42, "campaign", "wait")
	wantFailure(t, "a wait for the lead while paused", err, "ZF002", `"ops" paused the resource at`, "fencepost resume billing")
	_, err = h.bears(p, "c", 41)
	wantFailure(t, "a lower token while paused", err, "ZF001", "its token 41 is lower than the recorded token 42")
	if code, shown := h.command("status", "--dsn", h.pg.DSN(pgtest.Superuser, h.db)); code != 0 || strings.Contains(shown, "lease service") || !strings.Contains(shown, "paused") {
		t.Errorf("status of the database: code %d\n%s", code, shown)
	}
	h.order("resource billing is not paused any more", "resume", resource)
	again := h.mustBear(p, "a", 42)
	mustLead(t, again, "the token in force")
	again.must("INSERT INTO work VALUES ('42 again')")
	wantFailure(t, "a write of a session from before the pause", idle.exec("INSERT INTO work VALUES ('stale')"), "ZF001")
	_, err = h.bears(q, "c", 41)
	wantFailure(t, "a lower token", err, "ZF001")

	if code, out := h.command("generation", "bump", "--restored", "--yes", "--database", h.db); code != 0 {
		t.Fatalf("generation bump: code %d: %s", code, out)
	}
	p.Await(t, "an operator gave an order", "kind", "raise")
	third := h.mustBear(q, "a", 42)
	mustLead(t, third, "the token in force, after the epochs were raised")
	third.must("INSERT INTO work VALUES ('42, restored')")

	h.order("does not lead resource billing any more", "evict", resource)
	_, err = h.bears(p, "a", 42)
	wantFailure(t, "the evicted token", err, "ZF001")
	h.mustBear(q, "d", 43).must("INSERT INTO work VALUES ('43')")
	if works := h.works(); !slices.Equal(works, []string{"42", "42 again", "42, restored", "43"}) {
		t.Errorf("the rows are %v", works)
	}
}
