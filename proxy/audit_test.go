package proxy_test

import (
	"sync"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

const stale = "insert into t (v) values ('stale')"

// TestAuditSaysWhatWasRefused: each kind of refusal, with all that is known of it.
func TestAuditSaysWhatWasRefused(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	leader := s.Leader("leader")
	follower := s.Connect("follower")
	late := s.Connect("late")
	fixture.MustPass(t, late, Q("select * from c"))
	s.Grant("late") // without an announcement
	unfenced, _ := wiretest.Connect(t, s.Addr, "user", pgtest.App, "database", s.DB)
	for _, c := range []struct {
		conn  *wiretest.Conn
		state string
		sent  string
		want  fencing.Rejection
	}{
		{follower, "ZF002", stale, fencing.Rejection{
			Resource: "r", Worker: "follower", Kind: fencing.KindNotLeader,
		}},
		{late, "ZF003", stale, fencing.Rejection{
			Resource: "r", Worker: "late", Kind: fencing.KindStartOver, Held: 2, Finding: fencing.Finding{Epoch: 2, Current: 2, Holder: "late"},
		}},
		{late, "ZF005", "prepare transaction 'x'", fencing.Rejection{
			Resource: "r", Worker: "late", Kind: fencing.KindUnfenceable, Announced: 2, Held: 2, Finding: fencing.Finding{Epoch: 2, Current: 2, Holder: "late"},
		}},
		{unfenced, "ZF002", stale, fencing.Rejection{Kind: fencing.KindUnfenced}},
		{unfenced, "ZF005", "prepare transaction 'x'", fencing.Rejection{Kind: fencing.KindUnfenced}},
		{leader, "ZF001", stale, fencing.Rejection{
			Resource: "r", Worker: "leader", Kind: fencing.KindStale, Announced: 1, Held: 1, Finding: fencing.Finding{Epoch: 1, Current: 2, Holder: "late"},
		}},
	} {
		s.Audit.Forget()
		began := time.Now()
		if c.state == "ZF001" {
			fixture.MustEnd(t, c.conn, c.state, Q(c.sent))
		} else {
			fixture.MustFail(t, c.conn, c.state, Q(c.sent))
			fixture.MustPass(t, c.conn, Q("select 1"))
		}
		all := s.Audited(t, s.DB)
		if len(all) != 1 {
			t.Fatalf("%s: audited %+v; want one", c.state, all)
		}
		got, want := all[0], c.want
		want.SQLState, want.Statement, want.Write = c.state, c.sent, true
		want.Proxy, want.Database, want.User, want.Client = "test", s.DB, pgtest.App, c.conn.LocalAddr().String()
		if got.Time.Before(began) || got.Time.After(time.Now()) || got.Session == "" || got.Message == "" || (got.Incarnation == "") != (want.Resource == "") {
			t.Errorf("%s: audited %+v", c.state, got)
		}
		want.Time, want.Session, want.Message, want.Incarnation = got.Time, got.Session, got.Message, got.Incarnation
		if got != want {
			t.Errorf("%s: audited\n%+v; want\n%+v", c.state, got, want)
		}
	}
}

// slowAuditor takes one rejection for each value in its channel, or all of them when that
// is closed.
type slowAuditor struct {
	fixture.Recorder
	may chan struct{}
}

func (a *slowAuditor) Audit(x fencing.Rejection) {
	<-a.may
	a.Recorder.Audit(x)
}

// TestAuditLosesNothingAndDelaysOnlyWhoIsRefused: the client has the error before the auditor
// has seen the rejection. When too many wait for a slow auditor, the session that is
// refused waits, which counts as inactivity, and others continue. What waits is recorded when the proxy ends.
func TestAuditLosesNothingAndDelaysOnlyWhoIsRefused(t *testing.T) {
	t.Parallel()
	slow := &slowAuditor{may: make(chan struct{})}
	pg := pgtest.Shared(t)
	p, db := fixture.NewProxy(t, pg, func(c *proxy.Config) { c.Auditors = []fencing.Auditor{slow} }), pg.Database(t)
	hurry := sync.OnceFunc(func() { close(slow.may) })
	t.Cleanup(hurry) // or the proxy would not end
	leader := fixture.LeaderConn(t, p, db)
	fixture.MustExec(t, leader, "create table t (id int)")
	refused := func() <-chan string { // sends a follower's write, and returns the SQLSTATE of its error
		state := make(chan string, 1)
		c, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "follower")
		c.Send(Q("insert into t values (1)"))
		go func() { state <- wiretest.ErrorOf(c.Until('E')) }()
		return state
	}
	if state := <-refused(); state != fencing.StateNotLeader {
		t.Fatalf("the write is answered by %s", state)
	}
	if all := slow.All(); len(all) != 0 {
		t.Fatalf("the auditor was told of %+v", all)
	}
	follower, _ := wiretest.Connect(t, p.Addr, "user", pgtest.App, "database", db, "fencepost.resource", "r", "fencepost.worker", "follower")
	const more = 3
	errors, answered := make(chan struct{}, proxy.AuditQueueSize+more), make(chan struct{})
	go func() {
		defer close(answered)
		for range proxy.AuditQueueSize + more {
			follower.Send(Q("insert into t values (1)"))
			follower.Until('E')
			errors <- struct{}{}
			follower.Until('Z')
		}
	}()
	// The auditor has one, the queue is full, and the client has the error of the one that waits for room. It may
	// lack the ReadyForQuery, which Postgres flushes apart.
	full := func() bool { return len(errors) == proxy.AuditQueueSize+1 }
	fixture.Eventually(t, "the queue is full", full)
	fixture.MustExec(t, leader, "insert into t values (2)") // is not delayed
	if state := <-refused(); state != fencing.StateNotLeader {
		t.Errorf("another refused write is answered by %s", state)
	}
	fixture.Eventually(t, "a worker whose refusals are not recorded is none for which the server works: it could keep the lease for as long as that lasts", func() bool {
		return !p.Candidacy(db, "r", "follower").Busy()
	})
	if !full() {
		t.Errorf("%d writes were answered while the auditor is told of none", len(errors))
	}
	hurry()
	fixture.Eventually(t, "the session that waited goes on", func() bool { return len(errors) == cap(errors) })
	<-answered
	p.Server.Close()
	if n := len(slow.All()); n != proxy.AuditQueueSize+more+2 {
		t.Errorf("the auditor was told of %d of %d rejections", n, proxy.AuditQueueSize+more+2)
	}
}
