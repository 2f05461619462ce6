package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
)

// join makes the connection a member of its candidacy if it names a resource, and waits for
// the lease as the client requested. req names the worker, and policy is that of the session.
// announced is the epoch that the greeting announces, 0 for none.
func (x *session) join(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy) (announced fencing.Epoch, err error) {
	md, err := x.chooseMode(policy)
	if err != nil {
		return 0, err
	}
	if md != passing {
		if err := x.handshake.IdentifyBackend(&x.backend.Backend); err != nil {
			return 0, err
		}
	}
	c := protocol.Config{Mode: protocol.ModePassing, Version: x.backend.Version, Cache: x.srv.analyst.cache, Parameters: x.backend.Parameters}
	switch {
	case md == reading:
		err = x.beginReading(ctx, &c)
	case md == fenced:
		err = x.beginFenced(ctx, req, policy, &c)
	case x.start.Own.Resource != "":
		err = x.enterShadow(ctx, req, policy, &c)
	}
	if err != nil {
		return 0, err
	}
	x.movable = x.isMovable(md, policy)
	x.setCore(protocol.New(c))
	return c.Announced, nil
}

// isMovable reports whether another process may continue a session of this mode: one that may write without a fence, or
// one that campaigns, writes only while its backend is registered, and ends when it is superseded.
func (x *session) isMovable(md mode, policy SessionPolicy) bool {
	if x.start.Own.Resource == "" {
		return policy.Unfenced == UnfencedAllow
	}
	return md == fenced && policy.Fence == FenceSession && policy.OnStale == RejectStale && x.start.Own.Campaign != fencing.CampaignOff
}

// setCore makes m the core of the session. drain may run at the same time.
func (x *session) setCore(m *protocol.Session) {
	x.mu.Lock()
	x.m = m
	x.mu.Unlock()
}

// beginFenced joins the candidacy, and registers the backend before the client may send its first statement, if its
// worker leads under the epoch that the greeting announces. Otherwise it makes the session read-only.
func (x *session) beginFenced(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy, c *protocol.Config) error {
	x.becomeMember(&req)
	req.Registers = fencing.Checking
	refused, err := x.enterAndRegister(ctx, req, policy, c)
	if refused { // the candidacy may be over, which Join finds out now
		former := x.member.startup.joinedTo.Load()
		req.Registers = false
		_, err = x.enterAndRegister(ctx, req, policy, c)
		if former.Candidacy != x.member.candidacy() {
			former.Leave(&x.member.startup, true)
		}
	}
	if err != nil || !fencing.Checking || c.Registered || c.Tables && c.Announced == 0 && c.Status().Epoch == 0 {
		return err
	}
	return x.makeReadOnly(c)
}

// enterAndRegister enters, and registers the backend if the greeting announces an epoch. It reports true if that is
// refused and nothing but the registration would have compared the candidacy with the database. Then the session counts
// as outside.
func (x *session) enterAndRegister(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy, c *protocol.Config) (refused bool, err error) {
	if err := x.enter(ctx, req, policy, c); err != nil {
		return false, err
	}
	c.Mode, c.Announced = protocol.ModeFenced, x.member.startup.knownEpoch(c.Status(), x.start.Began)
	if fencing.Checking && c.Announced != 0 {
		_, refusal := x.register(ctx, []protocol.AnnouncedEpoch{{Resource: c.Resource, Epoch: c.Announced}})
		c.Registered = refusal == nil
		switch {
		case c.Registered:
		case ctx.Err() != nil:
			return false, refusals.FenceLate
		case refusal.SQLState == fencing.StateSuperseded && x.member.state.Load() != outside:
			return false, refusal
		case req.Registers:
			return true, nil
		}
	}
	x.countAsJoined()
	return false, nil
}

// makeReadOnly makes the session read-only. If the server refuses that, the session tries again before the first
// statement.
func (x *session) makeReadOnly(c *protocol.Config) error {
	failed, err := x.handshake.Ask(protocol.SetupSQL)
	c.SetUp = failed == nil
	return err
}

// beginReading begins a connection without a resource that may only read. Where read-only mode alone does not keep its
// reads from writing, they are proven. That does not wait for the catalog: the first statement does, if it is not empty
// or harmless.
func (x *session) beginReading(ctx context.Context, c *protocol.Config) (err error) {
	c.Mode, c.Unfenced = protocol.ModeReadOnly, fencing.UnfencedRefusal(x.start.User)
	if !c.Version.KeepsReadOnly() {
		if x.member.catalog, x.member.leaveCatalog, err = x.srv.cfg.Candidates.OpenCatalog(ctx, x.start.Database); err != nil {
			return refusals.Startup(err)
		}
		c.Catalog = x.member.catalog.Catalog
	}
	return x.makeReadOnly(c)
}

// enter joins the candidacy and waits for the lease, and completes the configuration of the core.
func (x *session) enter(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy, c *protocol.Config) error {
	s := &x.member.startup
	x.member.tables = policy.Fence == FenceTables
	s.discards, s.announcePerConnection, s.knownToCore = policy.OnStale == DiscardStale, policy.AnnouncePerConnection, true
	if err := s.join(ctx, req); err != nil {
		if ctx.Err() != nil {
			return refusals.FenceLate
		}
		return policy.Route.explain(refusals.Startup(err))
	}
	if !req.Registers || !s.candidacy().Status().CanWrite() {
		x.countAsJoined()
	}
	if x.member.tables && !x.hasGuards(ctx) {
		return fencing.UnguardedRefusal(req.Resource)
	}
	if err := x.awaitLease(ctx, req.Campaign); err != nil {
		return err
	}
	if fencing.Checking && s.candidacy().Status().Role == fencing.Superseded { // its next connection begins another one
		return s.supersededRefusal()
	}
	x.member.catalog = s.candidacy().Fence()
	if !x.backend.Version.KeepsReadOnly() {
		x.awaitCatalog(ctx)
		c.Catalog = x.member.catalog.Catalog
	}
	c.Candidacy, c.Worker, c.Nameless = s.forCore(), req.Worker, req.Nameless
	c.Discards, c.Tables = s.discards, x.member.tables
	return nil
}

// hasGuards reports whether the resource guards a table. If none was known of, it looks again.
func (x *session) hasGuards(ctx context.Context) bool {
	if x.member.candidacy().Status().Holder.Guards == 0 {
		x.readRecord(ctx, x.member.startup.joinedTo.Load())
	}
	return x.member.candidacy().Status().Holder.Guards > 0
}

// becomeMember precedes the first join of the session, which completes the request.
func (x *session) becomeMember(req *fencing.JoinRequest) {
	m := &x.member
	req.Backend = x.backend.PID
	m.request, m.token = *req, req.Token
	x.setStartupResource(req.Resource)
	m.place = x.srv.workers.Join(x, *req)
}

// countAsJoined has the session follow the candidacy that it has joined, which may be superseded already.
func (x *session) countAsJoined() {
	x.member.state.CompareAndSwap(outside, joined)
	x.member.startup.StatusChanged() // an earlier call has done nothing
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// awaitCatalog waits for the database's catalog, so that the client's first statement can be
// proven too.
func (x *session) awaitCatalog(ctx context.Context) {
	f := x.member.catalog
	if f.Catalog() != nil {
		return
	}
	wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	f.RefreshCatalog(wait)
}

// aLongTimeAgo, used as a deadline, ends blocked reads and writes at once.
var aLongTimeAgo = time.Unix(1, 0)
