package several

import (
	"context"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/guard"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestShownIsWhatIsChosen: SHOW and the reported parameters are about the resources that the
// transaction is checked for, in the order in which the client has named them.
func TestShownIsWhatIsChosen(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	s.SupersedeOn("follows")
	s.GrantOn("b", "other")
	c := chooser(s, "r", "a", "b") // with epochs 1, 1 and 2
	for _, step := range []struct{ sql, parameters, role, epoch, resource string }{
		{"select 1", "", "leader", "1", "r"},
		{"begin", "", "leader", "1", "r"},
		{"set local fencepost.resource = 'b'", "epoch=2 resource=b", "leader", "2", "b"},
		{"commit", "epoch=1 resource=r", "leader", "1", "r"},
		{"begin; set local fencepost.resource = ' b,a '", "epoch=2, 1 resource= b,a ", "leader", "2, 1", " b,a "},
		{"rollback", "epoch=1 resource=r", "leader", "1", "r"},
		{"set fencepost.resource = 'a, follows'", "epoch=1, 0 resource=a, follows role=follower", "follower", "1, 0", "a, follows"},
		{"begin; set local fencepost.resource = 'r'", "epoch=1 resource=r role=leader", "leader", "1", "r"},
		{"rollback", "epoch=1, 0 resource=a, follows role=follower", "follower", "1, 0", "a, follows"},
		{"discard all", "epoch=1 resource=r role=leader", "leader", "1", "r"},
		{"set fencepost.resource = 'r'", "", "leader", "1", "r"},
		{"begin; set local fencepost.resource = 'b'; select 1; commit", "", "leader", "1", "r"},
	} {
		if got := parameters(fixture.MustPass(t, c, Q(step.sql))); got != step.parameters {
			t.Errorf("%s: reported %q, want %q", step.sql, got, step.parameters)
		}
		for name, want := range map[string]string{"role": step.role, "epoch": step.epoch, "resource": step.resource, "worker": "w"} {
			if got := show(t, c, name); got != want {
				t.Errorf("%s: fencepost.%s is %q, want %q", step.sql, name, got, want)
			}
		}
		if step.sql == "begin" {
			continue // a query would be too early
		}
		set := fixture.FirstValue(t, fixture.MustPass(t, c, Q("select current_setting('fencepost.resource')")))
		if set != step.resource {
			t.Errorf("%s: the server has %q for fencepost.resource, want %q", step.sql, set, step.resource)
		}
	}
	s.Candidacy(s.DB, "a", "w").SetStatus(&fencing.Status{Role: fencing.Superseded, Epoch: 1})
	fixture.MustPass(t, c, Q("begin; set local fencepost.resource = 'a, b'"))
	if role := show(t, c, "role"); role != "superseded" {
		t.Errorf("the role is %s, want superseded", role)
	}
}

// TestWhatCannotBeChosen: a resource that the configuration or the elections refuse, one too many, and
// those whose sessions work in another way.
func TestWhatCannotBeChosen(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.Shared(t), func(c *proxy.Config) {
		c.ResourcesPerConnection = func() int { return 2 }
		c.Candidates = closed{c.Candidates}
		c.Policy = func(r fencing.JoinRequest) proxy.SessionPolicy {
			switch r.Resource {
			case "shadow":
				return proxy.SessionPolicy{Shadow: true}
			case "discard", "r2":
				return proxy.SessionPolicy{OnStale: proxy.DiscardStale}
			case "refused":
				return proxy.SessionPolicy{Refusal: &fencing.Refusal{SQLState: "28000", Message: "refused by the policy"}}
			default:
				return proxy.SessionPolicy{}
			}
		}
	})
	c := chooser(s, "b")
	for name, state := range map[string]string{"shadow": "ZF005", "discard": "ZF005", "refused": "28000", "closed": "28000", "b, closed": "28000"} {
		fixture.MustFail(t, c, state, Q("set fencepost.resource = '"+name+"'"))
		fixture.MustFail(t, c, state, Q("begin; set local fencepost.resource = '"+name+"'; "+write("refused")))
		fixture.MustPass(t, c, Q("rollback"))
		if shown := show(t, c, "resource"); shown != "r" {
			t.Errorf("%s: the session's resource is %s, want r", name, shown)
		}
	}
	fixture.MustPass(t, c, Q("begin; set local fencepost.resource = 'b'; "+write("chosen")+"; commit"))
	fixture.MustPass(t, c, Q("begin; set local fencepost.resource = 'c'; commit"))
	fixture.MustFail(t, c, "53400", Q("set fencepost.resource = 'd'"))
	worker := another(s)
	other := s.Connect(worker)
	for state, names := range map[string]string{"53400": "e, f, g", "28000": "e, refused", "ZF005": "f, shadow"} {
		fixture.MustFail(t, other, state, Q("set fencepost.resource = '"+names+"'"))
	}
	fixture.MustFail(t, other, "28000", Q("set fencepost.resource = 'h, closed'"))
	if n := s.Elector.Members(s.DB, "h", worker); n != 0 {
		t.Errorf("%d sessions are left in a candidacy of what was refused", n)
	}
	if n := s.Number("select count(*) from fencepost.fence where resource in ('e', 'f', 'g')"); n != 0 {
		t.Errorf("a refused choice has made %d resources", n)
	}
	fixture.MustPass(t, c, Q("set fencepost.resource = 'c, b, r'"))
	if n := s.Rows("chosen") + s.Rows("refused"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}

	// A session whose own stale writes are discarded rejects those of what it has chosen.
	worker = another(s)
	for _, resource := range []string{"r2", "b"} {
		s.GrantOn(resource, worker)
	}
	c = s.Connect(worker, "fencepost.resource", "r2")
	fixture.MustPass(t, c, Q("begin; set local fencepost.resource = 'b'; "+write("chosen")+"; commit"))
	fixture.MustPass(t, c, Run("begin"), Run("set local fencepost.resource = 'r2, b'"), Run(write("chosen")), Run("commit"), Sync())
	s.SupersedeOn("b")
	fixture.MustPass(t, c, Q(write("chosen")))
	fixture.MustEnd(t, c, "ZF001", Q("begin; set local fencepost.resource = 'b'; "+write("stale")))
	if s.Rows("chosen") != 4 || s.Rows("stale") != 0 {
		t.Errorf("%d rows, and %d stale ones; want 4 and none", s.Rows("chosen"), s.Rows("stale"))
	}
}

// closed are elections in which nobody may campaign for the resource closed.
type closed struct{ fencing.Candidates }

// Join implements fencing.Candidates.
func (x closed) Join(ctx context.Context, c fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	if c.Resource == "closed" {
		return nil, &fencing.Refusal{SQLState: "28000", Message: "nobody may campaign for it"}
	}
	return x.Candidates.Join(ctx, c, m)
}

// TestGuardedTablesOfTwoResources: the check claims what was chosen, so that a transaction which
// writes guarded tables of two resources names both.
func TestGuardedTablesOfTwoResources(t *testing.T) {
	t.Parallel()
	s := fixture.NewCluster(t, pgtest.SharedMajor(t, 18))
	s.Exec("create table of_a (v text); create table of_b (v text); grant all on of_a, of_b to app")
	c := chooser(s, "a", "b", "r")
	for _, resource := range []string{"a", "b"} {
		s.Guard(guard.Options{Resource: resource, Table: "public.of_" + resource, Stamp: "fence_epoch"})
		s.Candidacy(s.DB, resource, "w").CheckSuperseded(t.Context()) // it learns of the guard
	}
	const a, b = "insert into of_a values ('x')", "insert into of_b values ('x')"
	for _, w := range []struct{ chosen, sql, state string }{
		{"a", a, ""}, {"b", b, ""}, {"a, b", a + "; " + b, ""}, {"b, a", a + "; " + b, ""}, {"r, b, a", a + "; " + b, ""},
		{"a", b, "ZF002"}, {"b", a + "; " + b, "ZF002"}, {"r", a, "ZF002"},
	} {
		messages := Q("begin; set local fencepost.resource = '" + w.chosen + "'; " + w.sql + "; commit")
		if w.state == "" {
			fixture.MustPass(t, c, messages)
		} else {
			fixture.MustFail(t, c, w.state, messages)
		}
		fixture.MustPass(t, c, Q("rollback"))
	}
	if n := s.Number("select count(*) from of_a where fence_epoch = 1") + s.Number("select count(*) from of_b where fence_epoch = 1"); n != 8 {
		t.Errorf("%d stamped rows, want 8", n)
	}
	fixture.MustPass(t, c, Q("set fencepost.resource = 'a, b'"))
	fixture.MustPass(t, c, Run(a), Sync())
	s.SupersedeOn("b")
	fixture.MustEnd(t, c, "ZF001", Run(a), Sync())
}
