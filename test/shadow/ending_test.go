package shadow

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/fixture"
	"github.com/fencepost/fencepost/internal/pgtest"
	. "github.com/fencepost/fencepost/internal/wiretest/short"
	"github.com/fencepost/fencepost/proxy"
)

// TestABackendThatIsEndedIsNotSuperseded: an administrator has ended it, and the client is told what
// Postgres says, although the worker is superseded.
func TestABackendThatIsEndedIsNotSuperseded(t *testing.T) {
	t.Parallel()
	c := shadowed(t, pgtest.Shared(t))
	conn := c.Leader("w")
	fixture.MustPass(t, conn, Q("begin"))
	fixture.MustPass(t, conn, Q(insert))
	c.Supersede()
	if n := c.Number("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'"); n != 1 {
		t.Fatalf("%d backends ended", n)
	}
	fixture.MustEnd(t, conn, "57P01", Q("commit"))
}

// demanding has the proxy's candidacies say when they are to campaign.
type demanding struct {
	fencing.Candidates
	asked chan struct{}
	over  *atomic.Bool
}

func (d demanding) Join(ctx context.Context, r fencing.JoinRequest, m fencing.Member) (fencing.Candidacy, error) {
	c, err := d.Candidates.Join(ctx, r, m)
	return demanded{c, d}, err
}

type demanded struct {
	fencing.Candidacy
	demanding
}

// CampaignOnDemand lasts as long as it may.
func (d demanded) CampaignOnDemand(ctx context.Context) {
	d.asked <- struct{}{}
	<-ctx.Done()
	d.over.Store(true)
}

// TestAVacantLeaseIsTriedDuringTheWrite: the write does not wait for the attempt, and is not
// recorded, because the worker may lead in a moment.
func TestAVacantLeaseIsTriedDuringTheWrite(t *testing.T) {
	t.Parallel()
	pg := pgtest.Shared(t)
	d := demanding{asked: make(chan struct{}, 2), over: &atomic.Bool{}}
	c := fixture.NewClusterOn(t, fixture.NewProxy(t, pg, func(cfg *proxy.Config) {
		d.Candidates = cfg.Candidates
		cfg.Candidates = d
		cfg.Policy = func(fencing.JoinRequest) proxy.SessionPolicy { return proxy.SessionPolicy{Shadow: true} }
	}))
	conn := c.Connect("w")
	c.Candidacy(c.DB, "r", "w").SetStatus(&fencing.Status{Vacant: true})
	fixture.MustPass(t, conn, Q(insert))
	<-d.asked
	if d.over.Load() {
		t.Error("the write has waited for the attempt")
	}
	expect(t, c)
}
