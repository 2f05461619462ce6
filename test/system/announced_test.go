package system

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// poolCase is a pool of worker a at one proxy, which others supersede through another.
type poolCase struct {
	*cluster
	t        *testing.T
	one, two *process.Server
}

func newPoolCase(t *testing.T) *poolCase {
	t.Helper()
	h := newCluster(t, "postgres", with(long))
	return &poolCase{h, t, h.proxy(), h.proxy()}
}

// opens returns another connection of the pool.
func (p *poolCase) opens() *client {
	p.t.Helper()
	return p.join(p.one, "a")
}

const poolWrite = "INSERT INTO work VALUES ('a')"

// refused checks that a write is refused, and closes the connection.
func (p *poolCase) refused(c *client, state string) {
	p.t.Helper()
	if err := c.exec(poolWrite); stateOf(err) != state {
		p.t.Fatalf("the write: %v; want %s", err, state)
	}
	c.leave()
}

// startsOver returns a connection that leads, and whose first write was refused because it was not told.
func (p *poolCase) startsOver() *client {
	p.t.Helper()
	c := p.join(p.one, "a", "campaign", "wait")
	if err := c.exec(poolWrite); stateOf(err) != fencing.StateStartOver {
		p.t.Fatalf("the write: %v; want ZF003", err)
	}
	return c
}

// isTold makes the pool learn that it leads, and closes the connection that did.
func (p *poolCase) isTold() {
	p.t.Helper()
	c := p.startsOver()
	c.must("SELECT 1") // which shows that it has read the error
	c.leave()
}

// supersedes lets another worker lead and leave.
func (p *poolCase) supersedes(worker string) {
	p.t.Helper()
	p.order("does not lead resource billing any more", "evict", resource)
	other := p.join(p.two, worker, "campaign", "wait")
	other.must("INSERT INTO work VALUES ('other')")
	other.leave()
	p.two.Await(p.t, "released", "worker", worker)
}

// TestSafetyAPoolLearnsItsEpochAgain plays a pool of a worker that is superseded and leads again: one
// that replaces its connections at each error, and keeps others open that do not know yet.
func TestSafetyAPoolLearnsItsEpochAgain(t *testing.T) {
	t.Parallel()
	p := newPoolCase(t)
	first, second, third := p.opens(), p.opens(), p.opens()
	first.must(poolWrite)
	p.supersedes("b")
	p.refused(first, fencing.StateSuperseded)
	p.isTold()
	last := p.opens() // its candidacy ended with the connection that was told
	last.must(poolWrite)
	last.leave()
	last = p.opens()
	last.must(poolWrite)
	// A statement that the pool sends again after this one was decided by a worker
	// that did not know.
	p.refused(second, fencing.StateSuperseded)
	p.isTold()
	p.opens().must(poolWrite)

	last.must(poolWrite)
	p.supersedes("c")
	p.refused(last, fencing.StateSuperseded)
	p.isTold()
	last = p.opens()
	last.must(poolWrite)
	// The same holds if the connection is cut before it is told.
	if err := third.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
		c := p.opens()
		defer c.leave()
		return stateOf(c.exec(poolWrite)) == fencing.StateStartOver
	})
}

// TestSafetyAPoolLearnsAgainOfAResourceThatItChose: a connection that has written under another resource is cut, before
// it is told that its worker was superseded there. Others know that it leads again.
func TestSafetyAPoolLearnsAgainOfAResourceThatItChose(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long, "LEASE_GRACE=30s")) // a grant waits until a write that failed is rolled back
	p, q := h.proxy(), h.proxy()
	write := func(c *client) error {
		err := c.exec("BEGIN; SET LOCAL fencepost.resource = 'mail'; UPDATE work SET what = what WHERE false; COMMIT")
		if err != nil {
			c.must("ROLLBACK")
		}
		return err
	}
	opens := func() *client { return h.join(p, "a") }
	cut, knows := opens(), opens()
	if err := write(cut); err != nil {
		t.Fatal(err)
	}
	h.order("does not lead resource mail any more", "evict", "mail")
	other := h.join(q, "b", "resource", "mail", "campaign", "wait")
	other.must("INSERT INTO work VALUES ('b')")
	other.leave()
	process.Eventually(t, process.Patience, "the worker to lead again", func() bool {
		return stateOf(write(knows)) == fencing.StateStartOver
	})
	if err := write(knows); err != nil {
		t.Fatal(err)
	}
	if err := write(opens()); err != nil {
		t.Fatalf("a write of a worker that knows: %v", err)
	}
	if err := cut.PgConn().Conn().Close(); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
		c := opens()
		defer c.leave()
		return stateOf(write(c)) == fencing.StateStartOver
	})
}

// TestSafetyWhatWasAnnouncedBeforeDoesNotCount: a superseded connection of a worker ends after
// others were told of the new epoch, and before they show that they have read it.
func TestSafetyWhatWasAnnouncedBeforeDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]func(p *poolCase) *client{
		"by an error": func(p *poolCase) *client {
			return p.startsOver()
		},
		"at startup": func(p *poolCase) *client {
			p.isTold()
			return p.opens()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPoolCase(t)
			first, second := p.opens(), p.opens()
			first.must(poolWrite)
			p.supersedes("b")
			p.refused(first, fencing.StateSuperseded)
			c := told(p)
			p.refused(second, fencing.StateSuperseded)
			c.must("SELECT 1")
			p.isTold()
		})
	}
}

// TestSafetyAnotherUsersWorkerOfTheSameName: two users have a worker of the same id. The
// ledger does not tell them apart.
func TestSafetyAnotherUsersWorkerOfTheSameName(t *testing.T) {
	t.Parallel()
	p := newPoolCase(t)
	user := p.db + "_other"
	p.pg.Exec(t, pgtest.Superuser, p.db, "CREATE ROLE "+user+" LOGIN", "GRANT ALL ON work TO "+user)
	first := p.join(p.one, "a", "worker_timeout", "300ms")
	first.must(poolWrite)
	conn, err := pgx.Connect(t.Context(), p.one.DSN(user, p.db, "resource", resource, "worker", "a", "campaign", "wait"))
	if err != nil {
		t.Fatal(err)
	}
	other := &client{conn, t}
	other.must("INSERT INTO work VALUES ('other user')")
	other.leave()
	p.refused(first, fencing.StateSuperseded)
	c := p.join(p.one, "a", "campaign", "wait")
	p.refused(c, fencing.StateStartOver)
}

// TestSafetyAWorkerThatSharedAnEpochStartsOver: it led by a token that was recorded for another worker, and was
// superseded. Its driver connects again, and sends the statement again.
func TestSafetyAWorkerThatSharedAnEpochStartsOver(t *testing.T) {
	t.Parallel()
	for name, supersede := range map[string]func(h *cluster, p *process.Server) (token int64){
		"a higher token": func(h *cluster, p *process.Server) int64 {
			h.mustBear(p, "other", 6).must("INSERT INTO work VALUES ('other')")
			return 7
		},
		"a higher token that is shared again": func(h *cluster, p *process.Server) int64 {
			h.mustBear(p, "other", 6).must("INSERT INTO work VALUES ('other')")
			return 6
		},
		"a pause": func(h *cluster, _ *process.Server) int64 {
			h.order("resource billing is paused", "pause", resource)
			h.order("resource billing is not paused any more", "resume", resource)
			return 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres")
			p, _ := h.configured(tokens)
			q, _ := h.configured(tokens)
			h.mustBear(p, "first", 5).must("INSERT INTO work VALUES ('first')")
			w := h.mustBear(p, "w", 5)
			w.must("INSERT INTO work VALUES ('w')")
			token := supersede(h, q)
			const stale = "INSERT INTO work VALUES ('stale')"
			wantFailure(t, "a statement after that", w.exec(stale), "ZF001")
			wantFailure(t, "the same statement at once", h.mustBear(q, "w", token).exec(stale), "ZF003")
			if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'stale'"); n != 0 {
				t.Errorf("%d rows were written by a statement of before", n)
			}
		})
	}
}

// TestSafetyASharedTokenStartsOverWhereTheWorkerWasKnown: the worker's proxy knows that it was told the epoch
// before. Meanwhile another worker led by the next token, through another proxy.
func TestSafetyASharedTokenStartsOverWhereTheWorkerWasKnown(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(h *cluster, p *process.Server, w *client, lead func()) (*client, error){
		"it connects again": func(h *cluster, p *process.Server, w *client, lead func()) (*client, error) {
			w.leave()
			lead()
			return h.mustBear(p, "w", 6), nil
		},
		"it sets the token": func(_ *cluster, _ *process.Server, w *client, lead func()) (*client, error) {
			lead()
			return w, w.exec("SET fencepost.token = '6'")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres")
			p, _ := h.configured(tokens)
			q, _ := h.configured(tokens)
			h.mustBear(p, "first", 4).must("INSERT INTO work VALUES ('first')")
			h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
			w := h.mustBear(p, "w", 5)
			w.must("INSERT INTO work VALUES ('w')") // so it has read what it was told
			w, err := again(h, p, w, func() { h.mustBear(q, "other", 6).must("INSERT INTO work VALUES ('other')") })
			if err == nil {
				err = w.exec("INSERT INTO work VALUES ('stale')")
			}
			if state := stateOf(err); state != "ZF003" && state != "ZF001" { // the proxy may have learnt of the other one
				t.Errorf("a statement of before: %v; want ZF003 or ZF001", err)
			}
			if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'stale'"); n != 0 {
				t.Errorf("%d rows were written by it", n)
			}
		})
	}
}

// TestSafetyATokenThatLedElsewhereStartsOver: a worker has its token at two proxies. The grant of the second one
// waits on its way while the worker leads through the first one and is superseded by a pause.
func TestSafetyATokenThatLedElsewhereStartsOver(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	s := newStall()
	pass, end := sync.OnceFunc(func() { close(s.pass) }), sync.OnceFunc(func() { close(s.ended) })
	q, _ := h.configured(tokens, "UPSTREAM_ADDRESS="+fixture.NewRelay(t, "tcp", h.pg.Addr(), s.begin).Addr)
	t.Cleanup(func() { pass(); end() })
	h.mustBear(p, "other", 4).must("INSERT INTO work VALUES ('other')")
	var second *client
	var err error
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		second, err = h.bears(q, "w", 5)
	}()
	select {
	case <-s.waits:
	case <-time.After(process.Patience):
		t.Fatal("no grant of the second proxy is under way")
	}
	first := h.mustBear(p, "w", 5)
	first.must("INSERT INTO work VALUES ('w')")
	h.order("resource billing is paused", "pause", resource)
	const stale = "INSERT INTO work VALUES ('stale')"
	wantFailure(t, "a statement during the pause", first.exec(stale), "ZF001")
	h.order("resource billing is not paused any more", "resume", resource)
	pass()
	process.Eventually(t, process.Patience, "the second proxy to be granted an epoch", func() bool { return h.epoch() == 4 })
	end()
	<-connected
	if err != nil {
		t.Fatalf("connect to the second proxy: %v", err)
	}
	wantFailure(t, "the same statement there", second.exec(stale), "ZF003")
	if got := h.ledger(); got != "4 5 5 5" {
		t.Errorf("the ledger has %q, want the epoch of the second proxy behind that of the pause", got)
	}
}

// stall passes on what proxies send to Postgres until the first grant. It then holds back that, and what they
// send by other connections.
type stall struct {
	waits chan struct{} // closed when the grant waits
	pass  chan struct{} // closed to let the grant pass
	ended chan struct{} // closed to let the rest pass
	mu    sync.Mutex
	on    bool
}

func newStall() *stall {
	return &stall{waits: make(chan struct{}), pass: make(chan struct{}), ended: make(chan struct{})}
}

// begin is called for each connection.
func (s *stall) begin() fixture.Passing {
	grants := false
	return fixture.Passing{ToServer: func(b []byte) []byte {
		s.mu.Lock()
		if !s.on && bytes.Contains(b, []byte("fencepost.grant(")) {
			s.on, grants = true, true
			close(s.waits)
		}
		on := s.on
		s.mu.Unlock()
		switch {
		case grants:
			<-s.pass
		case on:
			<-s.ended
		}
		return b
	}}
}

const decidedBefore = "INSERT INTO work VALUES ('stale')"

// wroteNothingStale checks that a statement that was decided under an earlier epoch got ZF003, and was not executed.
func wroteNothingStale(t *testing.T, h *cluster, what string, err error) {
	t.Helper()
	wantFailure(t, what, err, "ZF003")
	if n := ask[int](h, "SELECT count(*) FROM work WHERE what = 'stale'"); n != 0 {
		t.Errorf("%s has written %d rows", what, n)
	}
}

// knowsToken7 has worker other lead by token 6, and then w by token 7, as another connection of w has read.
func knowsToken7(t *testing.T, h *cluster, p, q *process.Server) {
	t.Helper()
	h.mustBear(q, "other", 6).must("INSERT INTO work VALUES ('other')")
	knows := h.mustBear(p, "w", 7)
	wantFailure(t, "the first write by token 7", knows.exec("INSERT INTO work VALUES ('w')"), "ZF003")
	knows.must("SELECT 1", "INSERT INTO work VALUES ('w')")
}

// TestSafetyASharedTokenStartsOverOnEachConnection: a connection of the worker sets its next token. Another worker
// leads by that, too, and then a driver sends a statement again that another connection of the first one was to execute.
func TestSafetyASharedTokenStartsOverOnEachConnection(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	q, _ := h.configured(tokens)
	elected, another := h.mustBear(p, "w", 5), h.mustBear(p, "w", 5)
	elected.must("INSERT INTO work VALUES ('5')", "SET fencepost.token = '6'", "INSERT INTO work VALUES ('6')")
	h.mustBear(q, "x", 6).must("INSERT INTO work VALUES ('x')")
	wantFailure(t, "a statement after that", another.exec(decidedBefore), "ZF001")
	wroteNothingStale(t, h, "the same statement at once", h.mustBear(p, "w", 6).exec(decidedBefore))
	elected.must("INSERT INTO work VALUES ('6 goes on')")
}

// TestSafetyADiscardingConnectionStartsOver: its worker has been superseded, and leads by token 7, as another of its
// connections knows. What the connection was told before does not count.
func TestSafetyADiscardingConnectionStartsOver(t *testing.T) {
	t.Parallel()
	const discarded, tooHigh = "INSERT INTO work VALUES ('discarded')", "SET fencepost.token = '1000'"
	sets := func(_ *testing.T, _ *cluster, _ *process.Server, c *client) error {
		c.must("SET fencepost.token = '7'")
		return c.exec(decidedBefore)
	}
	for name, test := range map[string]struct {
		told []string // what it sends before the other one knows
		then func(t *testing.T, h *cluster, p *process.Server, c *client) error
	}{
		"it sets the token":            {nil, sets},
		"a write was discarded before": {[]string{discarded}, sets},
		"a token was refused before":   {[]string{discarded, tooHigh}, sets},
		"it is discarded again by then": {[]string{discarded}, func(_ *testing.T, h *cluster, p *process.Server, c *client) error {
			c.must(decidedBefore)
			return h.mustBear(p, "w", 7).exec(decidedBefore)
		}},
		"it is cut": {[]string{discarded}, func(t *testing.T, h *cluster, p *process.Server, c *client) (err error) {
			if err := c.PgConn().Conn().Close(); err != nil {
				t.Fatal(err)
			}
			process.Eventually(t, process.Patience, "the proxy to notice", func() bool {
				again := h.mustBear(p, "w", 7)
				defer again.leave()
				err = again.exec("UPDATE work SET what = what WHERE false")
				return stateOf(err) == "ZF003"
			})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newCluster(t, "postgres", patient, onServer(pgtest.SharedMajor(t, 18))) // 15 discards nothing
			const config = "resources: {billing: {election: token, on_stale: discard, max_jump: 100}}\n"
			p, _ := h.configured(config)
			q, _ := h.configured(config)
			c := h.mustBear(p, "w", 5)
			c.must("INSERT INTO work VALUES ('w')")
			h.mustBear(q, "other", 6)
			for _, sql := range test.told {
				if err := c.exec(sql); (stateOf(err) == "ZF006") != (sql == tooHigh) || sql != tooHigh && err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
			}
			knowsToken7(t, h, p, q)
			wroteNothingStale(t, h, "a statement of before", test.then(t, h, p, c))
		})
	}
}

// TestSafetyEachDiscardedWriteStartsOver: between two writes of one transaction, another connection of the worker reads
// that it leads again. The driver sends the second one again on a new connection.
func TestSafetyEachDiscardedWriteStartsOver(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres", with(long), patient, onServer(pgtest.SharedMajor(t, 18))) // 15 discards nothing
	const config = "resources: {billing: {on_stale: discard}}\n"
	one, _ := h.configured(config)
	two, _ := h.configured(config)
	p := &poolCase{h, t, one, two}
	c := p.opens()
	c.must(poolWrite)
	p.supersedes("b")
	knows := p.startsOver()
	c.must("BEGIN", "INSERT INTO work VALUES ('discarded')")
	knows.must("SHOW fencepost.role", "SELECT 1", "INSERT INTO work VALUES ('knows')")
	c.must(decidedBefore)
	wroteNothingStale(t, h, "the second write again", p.opens().exec(decidedBefore))
}

// TestSafetyWhatWasSentBeforeATokenWasKnownStartsOver: a pipeline waits for its first statement while another worker
// leads, and then its own one does by the token that the pipeline sets.
func TestSafetyWhatWasSentBeforeATokenWasKnownStartsOver(t *testing.T) {
	t.Parallel()
	h := newCluster(t, "postgres")
	p, _ := h.configured(tokens)
	q, _ := h.configured(tokens)
	h.mustBear(p, "w", 5).must("INSERT INTO work VALUES ('w')")
	h.pg.Exec(t, pgtest.Superuser, h.db, "CREATE TABLE locked ()", "GRANT ALL ON locked TO app")
	blocker := h.pg.Connect(t, pgtest.Superuser, h.db)
	if _, err := blocker.Exec(t.Context(), "BEGIN; LOCK TABLE locked"); err != nil {
		t.Fatal(err)
	}
	pipe := h.join(p, "w").PgConn().StartPipeline(t.Context())
	for _, sql := range []string{"SELECT FROM locked", "SET fencepost.token = '7'", decidedBefore} {
		pipe.SendQueryParams(sql, nil, nil, nil, nil)
		if err := pipe.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if err := pipe.Flush(); err != nil {
		t.Fatal(err)
	}
	process.Eventually(t, process.Patience, "the pipeline to wait", func() bool {
		return ask[bool](h, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'locked'::regclass AND NOT granted)")
	})
	knowsToken7(t, h, p, q)
	if _, err := blocker.Exec(t.Context(), "COMMIT"); err != nil {
		t.Fatal(err)
	}
	wroteNothingStale(t, h, "the statement behind the token", pipe.Close())
}
