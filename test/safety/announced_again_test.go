package safety

import (
	"strings"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// comesBack supersedes a worker, and lets it lead again under a new candidacy. It returns a
// connection that begins after that, to which nothing has been announced.
func comesBack(t *testing.T, s *fixture.Cluster, worker string) *wiretest.Conn {
	t.Helper()
	old := s.Leader(worker)
	fixture.MustPass(t, old, Q(mine))
	s.Supersede()
	fixture.MustEnd(t, old, "ZF001", Q(mine))
	s.Connect(worker)
	s.Grant(worker)
	return s.Connect(worker)
}

// TestSafetyAnEpochIsAnnouncedToAWorkerOnce: a worker that was superseded leads again. Its connections
// write only after one of them was told and has read that, and those that begin later know
// from their start.
func TestSafetyAnEpochIsAnnouncedToAWorkerOnce(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	for name, tell := range map[string]func(*testing.T, *wiretest.Conn){
		"by the refusal": func(t *testing.T, c *wiretest.Conn) { fixture.MustFail(t, c, "ZF003", Q(mine)) },
		"by asking":      func(t *testing.T, c *wiretest.Conn) { fixture.MustPass(t, c, Q("show fencepost.role")) },
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			s := s.With(t)
			first := comesBack(t, s, name)
			open := s.Connect(name)
			early := accepted(t, s)
			tell(t, first)
			between := accepted(t, s)
			unread := s.Connect(name)
			fixture.MustPass(t, first, Q("select 1")) // which shows that it has read what it was told
			fixture.MustPass(t, s.Connect(name), Q(mine))
			// Those that were there before do not know, whatever their startup still does.
			for _, c := range []*wiretest.Conn{early, between} {
				c.Send(wiretest.Startup("user", pgtest.App, "database", s.DB, "fencepost.resource", "r", "fencepost.worker", name))
				c.Until('Z')
			}
			for _, c := range []*wiretest.Conn{open, early, between, unread} {
				fixture.MustFail(t, c, "ZF003", Q(mine))
				fixture.MustPass(t, c, Q(mine))
			}
		})
	}
}

// accepted opens a connection that the proxy has accepted, and that has not sent its startup
// packet.
func accepted(t *testing.T, s *fixture.Cluster) *wiretest.Conn {
	t.Helper()
	c := wiretest.Dial(t, s.Addr)
	c.Send(wiretest.SSLRequest())
	var answer [1]byte
	if _, err := c.Read(answer[:]); err != nil || answer[0] != 'N' {
		t.Fatalf("the answer to an SSLRequest is %q (%v)", answer, err)
	}
	return c
}

// TestSafetyAnnouncedBeforeAClose: pgjdbc begins a batch by closing a statement that it no longer
// needs. What follows the Close is a new transaction all the same.
func TestSafetyAnnouncedBeforeAClose(t *testing.T) {
	t.Parallel()
	fixture.EachCluster(t, func(t *testing.T, s *fixture.Cluster) {
		for name, write := range map[string][]byte{
			"statement": Batch(wiretest.Close('S', "s"), Run(mine)),
			"portal":    Batch(wiretest.Close('P', "p"), Run(mine)),
			"several":   Batch(wiretest.Close('S', "s"), wiretest.Close('S', "t"), wiretest.Flush(), Run(mine)),
			"block":     Batch(wiretest.Close('S', "s"), Run("begin"), Run(mine), Run("commit")),
		} {
			c, _ := becomesLeader(s, name)
			fixture.MustFail(t, c, "ZF003", write)
			if name == "block" {
				fixture.MustPass(t, c, wiretest.Close('S', "s"), Run("rollback"), Sync())
			}
			fixture.MustPass(t, c, write)
			fixture.MustPass(t, c, write)
			s.Supersede()
			fixture.MustEnd(t, c, "ZF001", write)
			s.Exec("truncate t")
		}
	})
}

// TestSafetyAnEpochIsAnnouncedToEachConnection: with AnnouncePerConnection, no connection of a worker that was
// superseded is told at startup.
func TestSafetyAnEpochIsAnnouncedToEachConnection(t *testing.T) {
	t.Parallel()
	p := fixture.NewProxy(t, pgtest.Shared(t), func(c *proxy.Config) {
		c.Policy = func(fencing.JoinRequest) proxy.SessionPolicy { return proxy.SessionPolicy{AnnouncePerConnection: true} }
	})
	s := fixture.NewClusterOn(t, p)
	c := comesBack(t, s, "w")
	for range 3 {
		fixture.MustFail(t, c, "ZF003", Q(mine))
		fixture.MustPass(t, c, Q(mine))
		c = s.Connect("w")
	}
}
