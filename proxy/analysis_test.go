package proxy_test

import (
	"runtime"
	"strings"
	"sync"
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

// TestAnalysisHoldsNoOneUp: while the texts of many sessions wait for their
// analysis, which is held back here, another session continues, and the sessions
// that wait can be asked for signs of life.
func TestAnalysisHoldsNoOneUp(t *testing.T) {
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
		r.Wait() // the client gets the error, whether its text is being analyzed or waits
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

// TestLongTextsAreStillRecorded: a text of each length is what it is, whoever
// analyzes it: a read for a follower, a write that is refused, and in a batch
// that is still open.
func TestLongTextsAreStillRecorded(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	leader := s.Leader("leader")
	c := s.Connect("follower")
	sizes := []int{10, 460, 512, 600, 2048, 100_000}
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
