package proxy_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// longRead is a SELECT that is too long to be parsed while the session is locked.
func longRead(n int) string {
	return "/* " + strings.Repeat("x", n) + " */ select count(*) from c"
}

// TestAnalysisHoldsNobodyUp: while the texts of many sessions wait for their
// analysis, which is held back here, another session goes on, and the sessions
// that wait can be asked for signs of life.
func TestAnalysisHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	const sessions = 16
	asked, held := make(chan string, 4*sessions), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	t.Cleanup(release)
	b := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil, func(s *proxy.Server) {
		s.AnalyzeWith(func(sql string, st sqltext.Settings) *sqltext.Text {
			asked <- sql
			<-held
			return sqltext.Analyze(sql, st)
		})
	})
	s := fixture.NewClusterOn(t, b)
	leader := s.Leader("leader")
	var waiting []*wiretest.Conn
	var replies []*fixture.Reply
	for i := range sessions {
		c := s.Connect("follower" + string(rune('a'+i)))
		waiting = append(waiting, c)
		text := longRead(100_000)
		if i%2 == 0 { // the text comes while the server is busy with a statement of the same session
			replies = append(replies, fixture.ReadReply(c, 2))
			c.Send(Q("select pg_sleep(0.05)"), Q(text))
		} else {
			replies = append(replies, fixture.ReadReply(c, 1))
			c.Send(Parse("", text), Bind("", ""), Exec("", 0), Sync())
		}
	}
	fixture.Eventually(t, "a long text is analyzed outside the machine", func() bool {
		for i, r := range replies {
			if r.Done() {
				t.Fatalf("session %d was answered without an analysis outside the machine", i)
			}
		}
		return len(asked) > 0 // the others wait for their turns
	})
	fixture.Eventually(t, "the others' short statements are answered", func() bool {
		return s.Number("select count(*) from pg_stat_activity where query like '%pg_sleep(0.05)%' and state = 'active' and pid <> pg_backend_pid()") == 0
	})
	for range 200 {
		fixture.MustPass(t, leader, Q("update c set v = v"))
	}
	for i := range waiting {
		candidacy := s.Candidacy(s.DB, "r", "follower"+string(rune('a'+i)))
		done := make(chan bool)
		go func() { done <- candidacy.Busy() }()
		select {
		case owed := <-done:
			if !owed {
				t.Errorf("session %d counts as silent while its text is analyzed", i)
			}
		case <-time.After(fixture.Patience):
			t.Fatalf("session %d cannot be asked for signs of life", i)
		}
		if replies[i].Done() {
			t.Errorf("session %d was answered without an analysis", i)
		}
	}
	release()
	for i, p := range replies {
		if all, ended := p.Wait(); ended || wiretest.ErrorOf(all) != "" {
			t.Errorf("session %d: %v, ended %v", i, all, ended)
		}
	}
}

// TestTextsThatWaitHoldNoShutdownUp: when the proxy is closed, it does not wait for the
// analysis of texts whose turn has not come.
func TestTextsThatWaitHoldNoShutdownUp(t *testing.T) {
	t.Parallel()
	const waiting = 4
	sessions := max(1, runtime.GOMAXPROCS(0)/2) + waiting
	asked, held := make(chan string, sessions), make(chan struct{})
	b := fixture.NewProxy(t, pgtest.SharedMajor(t, 18), nil, func(s *proxy.Server) {
		s.AnalyzeWith(func(sql string, st sqltext.Settings) *sqltext.Text {
			asked <- sql
			<-held
			return sqltext.Analyze(sql, st)
		})
	})
	s := fixture.NewClusterOn(t, b)
	var replies []*fixture.Reply
	for i := range sessions {
		c := s.Connect("follower" + string(rune('a'+i)))
		replies = append(replies, fixture.ReadReply(c, 1))
		c.Send(Q(longRead(100_000)))
	}
	fixture.Eventually(t, "the texts wait", func() bool { return b.Server.WaitingTexts() == waiting })
	closed := make(chan struct{})
	go func() { b.Server.Close(); close(closed) }()
	for _, r := range replies {
		r.Wait() // the client is told, whether its text is being analyzed or waits
	}
	close(held)
	select {
	case <-closed:
	case <-time.After(fixture.Patience):
		t.Fatal("the proxy does not end")
	}
	if n := len(asked); n != sessions-waiting {
		t.Errorf("%d texts were analyzed before the proxy ended, want %d", n, sessions-waiting)
	}
}

// TestLongTextsAreStillTold: a text of each length is what it is, whoever
// analyzes it: a read for a follower, a write that is refused, and in a batch
// that is still open.
func TestLongTextsAreStillTold(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Start(t, pgtest.WithBinaries(pgtest.Binaries(t, 18))))
	leader := s.Leader("leader")
	c := s.Connect("follower")
	sizes := []int{10, 460, 512, 600, 1990, 2048, 5000, 20_000, 100_000}
	for _, n := range sizes {
		read := longRead(n)
		write := "insert into t (v) values ('" + strings.Repeat("x", n) + "')"
		fixture.MustPass(t, c, Q(read))
		fixture.MustPass(t, c, Run(read), Sync())
		fixture.MustPass(t, c, Q(read+"; "+read))
		fixture.MustPass(t, c, Parse("s", "select '"+strings.Repeat("y", n)+"'"), Sync())
		fixture.MustPass(t, c, Bind("", "s"), Exec("", 0), Run(read), Shut('S', "s"), Sync())
		fixture.MustFail(t, c, "ZF002", Q(write))
		fixture.MustFail(t, c, "ZF002", Run(write), Sync())
		fixture.MustPass(t, leader, Q(write))
		fixture.MustPass(t, leader, Run(write), Run(read), Sync())
		fixture.MustPass(t, leader, Parse("w", write), Bind("", "w"), Exec("", 0), Shut('S', "w"), Sync())
	}
	if got := s.Number("select count(*) from t"); got != 3*len(sizes) {
		t.Errorf("%d rows, want %d", got, 3*len(sizes))
	}
}

// TestAQuietLeaderIsNotHeldUp: beside sessions of a role without rights that send long texts
// nobody has seen before, the statements of a leader take less than 50 ms, but for one in a
// hundred. They are due at fixed times, so that a long wait delays more than one.
//
// On a busy machine, every process waits for a processor. So the limit grows with what the same
// statements take on a connection without the proxy. A statement through the proxy waits for a
// processor twice as often, since two more sockets are on its way. What delays one of the two
// connections alone passes, so that they are measured again a few times. A proxy that is held up
// by long texts is so all the time.
func TestAQuietLeaderIsNotHeldUp(t *testing.T) {
	t.Parallel()
	const limit, hops, tries = 50 * time.Millisecond, 2, 3
	p, connect := quietProxy(t)
	leader, direct := connect("leader", p.Addr), connect("direct", p.PG.Addr())
	texts := sendLongTexts(16, func(i int) *wiretest.Conn { return connect(fmt.Sprint("follower", i), p.Addr) })
	defer texts.end()
	fixture.Eventually(t, "a long text is answered", func() bool { return texts.answered.Load() > 0 })
	var p99, machine time.Duration
	for range tries {
		ends := time.Now().Add(2 * time.Second)
		var errs [2]error
		var measured sync.WaitGroup
		measured.Go(func() { p99, errs[0] = paced(leader, ends) })
		measured.Go(func() { machine, errs[1] = paced(direct, ends) })
		measured.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		t.Logf("the leader's p99 is %v, without the proxy %v, after %d long texts", p99, machine, texts.answered.Load())
		if p99 < limit+hops*machine {
			return
		}
	}
	t.Errorf("p99 of the leader's statements is %v, without the proxy %v", p99, machine)
}

// paced runs small statements, of which one is due every five milliseconds, and returns how long
// after it was due one was answered, but for the slowest one in a hundred. Those that become due
// while another one is not answered count as answered together with it.
func paced(c *wiretest.Conn, ends time.Time) (p99 time.Duration, err error) {
	var took []time.Duration
	for due := time.Now(); due.Before(ends); {
		time.Sleep(time.Until(due))
		if all, ended := fixture.Ask(c, Q("select 1")); ended || wiretest.ErrorOf(all) != "" {
			return 0, fmt.Errorf("%v, ended %t", all, ended)
		}
		for now := time.Now(); !due.After(now); due = due.Add(5 * time.Millisecond) {
			took = append(took, now.Sub(due))
		}
	}
	return percentile99(took), nil
}

func percentile99(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)*99/100]
}

// quietProxy starts a proxy that parses all texts itself, and grants the resource to the worker
// "leader". connect connects a worker.
func quietProxy(tb testing.TB) (p *fixture.Proxy, connect func(worker, address string) *wiretest.Conn) {
	p = fixture.NewProxy(tb, pgtest.SharedMajor(tb, 18), nil)
	db := p.PG.Database(tb)
	connect = func(worker, address string) *wiretest.Conn {
		parameters := []string{"user", pgtest.App, "database", db}
		if address == p.Addr {
			parameters = append(parameters, "fencepost.resource", "r", "fencepost.worker", worker)
		}
		c, _ := wiretest.Connect(tb, address, parameters...)
		return c
	}
	connect("leader", p.Addr)
	p.Candidacy(db, "r", "leader").Grant()
	return p, connect
}

// longTexts is sessions that send long texts. Half of them send texts that are too long for the
// event loop, each behind a statement that is still running. The texts of the others have room in
// the proxy's buffer, because a longer one was sent before, so that the event loop may take them.
type longTexts struct {
	conns    []*wiretest.Conn
	sessions sync.WaitGroup
	answered atomic.Int64
}

func sendLongTexts(sessions int, connect func(i int) *wiretest.Conn) *longTexts {
	const roomy = 60_000
	l := &longTexts{}
	for i := range sessions {
		c := connect(i)
		fixture.Ask(c, Q("/*"+strings.Repeat("x", roomy+1000)+"*/ select 1"))
		l.conns = append(l.conns, c)
	}
	for i, c := range l.conns {
		front, length, replies := Q("select pg_sleep(0.05)"), 250_000, 2
		if i%2 == 1 {
			front, length, replies = nil, roomy, 1
		}
		l.sessions.Go(func() {
			for n := 0; ; n++ {
				text := fmt.Sprintf("select %d, %d%s", i, n, strings.Repeat(", 1 + 1", length/7))
				r := fixture.ReadReply(c, replies)
				if _, err := c.Write(Cat(front, Q(text))); err != nil {
					_ = c.Close()
				}
				if all, _ := r.Wait(); len(all) < 2 || all[len(all)-1].Type != 'Z' {
					return
				}
				l.answered.Add(1)
			}
		})
	}
	return l
}

// end ends the sessions, whose last texts are not answered.
func (l *longTexts) end() {
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.sessions.Wait()
}

// BenchmarkQuietLeader measures the statements of a leader beside sessions that send long texts.
// The figure that counts is p99, against that of the same leader alone.
func BenchmarkQuietLeader(b *testing.B) {
	for _, n := range []int{0, 16} {
		b.Run(fmt.Sprintf("beside %d", n), func(b *testing.B) {
			p, connect := quietProxy(b)
			leader := connect("leader", p.Addr)
			texts := sendLongTexts(n, func(i int) *wiretest.Conn { return connect(fmt.Sprint("follower", i), p.Addr) })
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				if all, ended := fixture.Ask(leader, Q("select 1")); ended || wiretest.ErrorOf(all) != "" {
					b.Fatal(all)
				}
				took = append(took, time.Since(start))
			}
			texts.end()
			b.ReportMetric(float64(percentile99(took))/float64(time.Millisecond), "p99-ms")
			b.ReportMetric(float64(took[len(took)-1])/float64(time.Millisecond), "max-ms")
		})
	}
}
