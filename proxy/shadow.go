package proxy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/shadow"
)

// enterShadow is enter for a resource in shadow. Nothing keeps the client from Postgres: what
// would have refused the connection is recorded.
func (x *session) enterShadow(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy, c *protocol.Config) error {
	x.srv.cfg.Metrics.Shadowed(x.start.Database, req.Resource)
	x.member.shadow = newBackground()
	x.becomeMember(&req)
	err := x.member.startup.join(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		return handshake.ErrOver
	case err != nil:
		x.auditStartup(policy.Route.explain(refusals.Startup(err)))
		return nil
	}
	x.countAsJoined()
	if policy.Fence == FenceTables && !x.hasGuards(ctx) {
		x.auditStartup(fencing.UnguardedRefusal(req.Resource))
	}
	var refusal *fencing.Refusal
	if err := x.awaitLease(ctx, req.Campaign); errors.As(err, &refusal) {
		x.auditStartup(refusal)
	} else if err != nil {
		return err
	}
	c.Candidacy, c.Worker, c.Nameless = x.member.startup.forCore(), req.Worker, req.Nameless
	c.Shadow = shadow.New(shadow.Config{
		Resource: req.Resource, Worker: req.Worker, Incarnation: c.Incarnation(), Nameless: req.Nameless,
		Version: c.Version, Cache: c.Cache, Status: c.Status, Trouble: c.Trouble,
		Campaign:  x.member.shadow.trigger(x.srv.cfg.StartupWait, x.member.candidacy().CampaignOnDemand),
		Announced: x.member.startup.knownEpoch(c.Status(), x.start.Began),
	})
	return nil
}

// auditStartup records what would have refused the connection.
func (x *session) auditStartup(r *fencing.Refusal) {
	own := x.start.Own
	x.audit(fencing.Rejection{
		Time: time.Now(), Resource: own.Resource, Worker: x.member.request.Worker, Write: true, Verb: fencing.VerbConnection, Shadow: true,
		Kind: fencing.KindOf(own.Resource, r.SQLState, fencing.Finding{}), SQLState: r.SQLState, Message: "the connection would be refused: " + r.Message,
	})
}

// auditShadow records what was observed after the server's last reply.
func (x *session) auditShadow() {
	x.mu.Lock()
	rest := x.m.Shadowed()
	x.mu.Unlock()
	for _, r := range rest {
		r.Time = time.Now()
		x.audit(r)
	}
}

// background is the work for a session in shadow for which its client does not wait.
type background struct {
	ctx    context.Context
	cancel context.CancelFunc
	all    sync.WaitGroup
}

func newBackground() *background {
	b := &background{}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// trigger returns a function that starts f in the background, unless f is running. It must
// not be called after end.
func (b *background) trigger(limit time.Duration, f func(context.Context)) func() {
	var busy atomic.Bool
	return func() {
		if !busy.CompareAndSwap(false, true) {
			return
		}
		b.all.Go(func() {
			ctx, cancel := context.WithTimeout(b.ctx, limit)
			defer cancel()
			f(ctx)
			busy.Store(false)
		})
	}
}

// end cancels the work and waits for it. b may be nil.
func (b *background) end() {
	if b != nil {
		b.cancel()
		b.all.Wait()
	}
}
