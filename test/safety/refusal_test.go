package safety

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/wiretest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestRefusalSaysWhatThereIsToSay: the error names worker, resource and epochs,
// also to a client whose encoding has no letters for them, and the auditors are told
// the same.
func TestRefusalSaysWhatThereIsToSay(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	const worker = "w\u00f6rker \u2013 \u5de5"
	c := s.Leader(worker, "client_encoding", "LATIN1")
	s.Supersede()
	f := fixture.MustEnd(t, c, "ZF001", Q("insert into t (v) values ('se''cret'), ('x')"))
	for _, field := range []byte("MDH") {
		if f[field] == "" || strings.ContainsFunc(f[field], func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("field %c is not a line of ASCII: %q", field, f[field])
		}
	}
	if _, ok := f['W']; ok {
		t.Errorf("the error has a context: %q", f['W'])
	}
	var d struct {
		Resource, Worker, Incarnation string
		Epoch                         int
		CurrentEpoch                  int    `json:"current_epoch"`
		CurrentWorker                 string `json:"current_worker"`
	}
	if err := json.Unmarshal([]byte(f['D']), &d); err != nil {
		t.Fatalf("the detail %q is no JSON: %v", f['D'], err)
	}
	if d.Resource != "r" || d.Worker != worker || d.Epoch != 1 || d.CurrentEpoch != 2 || !strings.HasPrefix(d.CurrentWorker, "successor") || !strings.HasPrefix(d.Incarnation, worker) {
		t.Errorf("the detail says %+v", d)
	}
	for _, part := range []string{"resource r", "epoch 1", "current epoch 2", d.CurrentWorker} {
		if !strings.Contains(f['M'], part) {
			t.Errorf("the message %q does not say %q", f['M'], part)
		}
	}
	all := s.Audited(t, s.DB)
	if len(all) != 1 {
		t.Fatalf("audited %+v; want one", all)
	}
	if r := all[0]; r.Worker != worker || r.Incarnation != d.Incarnation || r.Holder != d.CurrentWorker || fencing.Marked(r.Message, r.SQLState) != f['M'] {
		t.Errorf("audited %+v; the client was told %+v", r, d)
	}
}

// TestEndedByTheGrant: a worker whose transaction was in the way is told so: at
// once if it waits for an answer, else at its next use.
func TestEndedByTheGrant(t *testing.T) {
	t.Parallel()
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		s := fixture.NewCluster(t, pgtest.Shared(t))
		c := s.Leader("w")
		fixture.MustPass(t, c, Q("begin; "+stale))
		s.Supersede()
		f := fixture.MustEnd(t, c, "ZF001", Q("select 1"))
		if !strings.Contains(f['M'], "superseded") {
			t.Errorf("got %v", f)
		}
	})
	t.Run("waiting", func(t *testing.T) {
		t.Parallel()
		s := fixture.NewCluster(t, pgtest.Shared(t))
		c := s.Leader("w")
		s.Exec("begin; update c set v = 'held'")
		answer := fixture.ReadReply(c, 1)
		c.Send(Q("update c set v = 'stale'"))
		fixture.Eventually(t, "the write waits for the row", func() bool { return lockWaiters(s, "transactionid") == 1 })
		s.Supersede()
		all, ended := answer.Wait()
		if f := all[len(all)-1].Fields(); !ended || f['C'] != "ZF001" || f['V'] != "FATAL" {
			t.Errorf("got %v, ended %v; want FATAL ZF001", all, ended)
		}
		s.Exec("commit")
		if s.Number("select count(*) from c where v = 'stale'") != 0 {
			t.Error("the stale write is there")
		}
	})
}

// TestEndedByAnOperator: nobody was granted since, so the error is relayed as it
// is.
func TestEndedByAnOperator(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t))
	c := s.Leader("w")
	fixture.MustPass(t, c, Q("select 1"))
	s.Exec("select pg_terminate_backend(pid) from (select pid from pg_stat_activity where usename = 'app' and datname = current_database() order by backend_start desc limit 1) x")
	all := c.Rest()
	if f := all[len(all)-1].Fields(); f['C'] != "57P01" || f['V'] != "FATAL" {
		t.Errorf("got %v; want FATAL 57P01", all)
	}
}

// TestFollowersEndAtOnce: nobody can have taken over from a worker that never led, so
// the error is relayed without a look at grants, though startup_wait is long.
func TestFollowersEndAtOnce(t *testing.T) {
	t.Parallel()
	fixture.EachServer(t, func(t *testing.T, pg *pgtest.Server) {
		s := fixture.NewClusterOn(t, fixture.NewProxy(t, pg, func(c *proxy.Config) { c.StartupWait = time.Hour }))
		c := s.Connect("w")
		pid := fixture.FirstValue(t, fixture.MustPass(t, c, Q("select pg_backend_pid()")))
		s.Exec("select pg_terminate_backend(" + pid + ")")
		all := c.Rest()
		if len(all) == 0 || all[0].Fields()['C'] != "57P01" || all[0].Fields()['V'] != "FATAL" {
			t.Errorf("got %v; want FATAL 57P01", all)
		}
	})
}

// TestEndedByAGrantOnItsWay: a worker whose lease has lapsed is told of the grant that
// ended its backend, though the grant is recorded only after that.
func TestEndedByAGrantOnItsWay(t *testing.T) {
	t.Parallel()
	patient := fixture.NewProxy(t, pgtest.Shared(t), func(c *proxy.Config) { c.StartupWait = time.Minute })
	s := fixture.NewClusterOn(t, patient)
	c := s.Leader("w")
	pid := fixture.FirstValue(t, fixture.MustPass(t, c, Q("select pg_backend_pid()")))
	candidacy := s.Candidacy(s.DB, "r", "w")
	lapsed := *candidacy.Status()
	lapsed.Role, lapsed.Lapsed = fencing.Follower, true
	candidacy.SetStatus(&lapsed)
	s.Connect("successor")
	successor, looks := s.Candidacy(s.DB, "r", "successor"), 0
	candidacy.OnCheckSuperseded(func() {
		if looks++; looks == 2 {
			if _, err := successor.TryGrant(); err != nil {
				t.Error(err)
			}
		}
	})
	answer := fixture.ReadReply(c, 1)
	c.Send(Q("select pg_sleep(60)"))
	s.Exec("select pg_terminate_backend(" + pid + ")")
	all, ended := answer.Wait()
	if !ended || wiretest.ErrorOf(all) != "ZF001" {
		t.Errorf("got %v, ended %v; want FATAL ZF001", all, ended)
	}
}
