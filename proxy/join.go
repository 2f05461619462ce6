package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/shadow"
)

// join makes the connection a member of its candidacy if it names a resource, and waits for
// the lease as the client requested. req names the worker, and policy is that of the session.
// announced is the epoch that the greeting announces, 0
// for none.
func (x *session) join(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy) (st *fencing.Status, announced fencing.Epoch, err error) {
	md, err := x.chooseMode(policy)
	if err != nil {
		return nil, 0, err
	}
	if md != passing {
		if err := x.handshake.IdentifyBackend(&x.backend.Backend); err != nil {
			return nil, 0, err
		}
	}
	if md == reading {
		return noStatus, 0, x.beginReading(ctx)
	}
	c := protocol.Config{
		Mode: protocol.ModePassing, Version: x.backend.Version, Cache: x.srv.analyst.cache, Parameters: x.backend.Parameters,
	}
	st = noStatus
	switch {
	case md == fenced:
		c.Mode = protocol.ModeFenced
		if err = x.enter(ctx, req, policy, &c); err == nil {
			st, err = x.beginFenced(ctx, &c)
		}
	case x.start.Own.Resource != "":
		if err = x.enterShadow(ctx, req, policy, &c); c.Status != nil {
			st = c.Status()
		}
	}
	if err != nil {
		return nil, 0, err
	}
	x.setCore(protocol.New(c))
	return st, c.Announced, nil
}

// beginFenced registers the backend before the client may send its first statement, if its worker leads under the
// epoch that the greeting announces. Otherwise it makes the session read-only.
func (x *session) beginFenced(ctx context.Context, c *protocol.Config) (*fencing.Status, error) {
	st := c.Status()
	c.Announced = x.knownEpoch(st, x.start.Began)
	switch {
	case !fencing.Checking, c.Tables && c.Announced == 0 && st.Epoch == 0:
		return st, nil
	case c.Announced != 0:
		_, refusal := x.register(ctx, []protocol.AnnouncedEpoch{{Epoch: c.Announced}})
		c.Registered = refusal == nil
	}
	if c.Registered {
		return st, nil
	}
	return st, x.makeReadOnly(c)
}

// makeReadOnly makes the session read-only. If the server refuses that, the session tries again before the first statement.
func (x *session) makeReadOnly(c *protocol.Config) error {
	failed, err := x.handshake.Ask(protocol.SetupSQL)
	c.SetUp = failed == nil
	return err
}

// setCore makes m the core of the session. drain may run at the same time.
func (x *session) setCore(m *protocol.Session) {
	x.mu.Lock()
	x.m = m
	x.mu.Unlock()
}

// beginReading begins a connection without a resource that may only read.
func (x *session) beginReading(ctx context.Context) error {
	c := protocol.Config{
		Mode: protocol.ModeReadOnly, Version: x.backend.Version, Cache: x.srv.analyst.cache,
		Unfenced: fencing.UnfencedRefusal(x.start.User), Parameters: x.backend.Parameters,
	}
	if !c.Version.KeepsReadOnly() {
		var err error
		if c.Catalog, err = x.openCatalog(ctx); err != nil {
			return refusals.Startup(err)
		}
	}
	if err := x.makeReadOnly(&c); err != nil {
		return err
	}
	x.setCore(protocol.New(c))
	return nil
}

// enter joins the candidacy and waits for the lease, and completes the configuration of the core.
func (x *session) enter(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy, c *protocol.Config) error {
	x.member.discards, x.member.tables, x.member.announcePerConnection = policy.OnStale == DiscardStale, policy.Fence == FenceTables, policy.AnnouncePerConnection
	cand, err := x.joinCandidacy(ctx, req)
	if err != nil {
		return policy.Route.explain(refusals.Startup(err))
	}
	x.StatusChanged() // an earlier call has done nothing
	if x.member.tables && !x.hasGuards(ctx) {
		return fencing.UnguardedRefusal(req.Resource)
	}
	if err := x.awaitLease(ctx, req.Campaign); err != nil {
		return err
	}
	if fencing.Checking && cand.Status().Role == fencing.Superseded { // its next connection begins another one
		return x.supersededRefusal()
	}
	x.member.catalog = cand.Fence()
	if !x.backend.Version.KeepsReadOnly() {
		x.awaitCatalog(ctx)
		c.Catalog = x.member.catalog.Catalog
	}
	c.Candidacy, c.Worker, c.Nameless = x.coreCandidacy(), x.member.request.Worker, x.member.request.Nameless
	c.Discards, c.Tables = x.member.discards, x.member.tables
	return nil
}

// hasGuards reports whether the resource guards a table. If none was known of, it looks again.
func (x *session) hasGuards(ctx context.Context) bool {
	if x.member.candidacy().Status().Holder.Guards == 0 {
		x.readRecord(ctx, x.member.joinedTo.Load())
	}
	return x.member.candidacy().Status().Holder.Guards > 0
}

// joinCandidacy makes the session a member of the candidacy.
func (x *session) joinCandidacy(ctx context.Context, req fencing.JoinRequest) (fencing.Candidacy, error) {
	req.Backend = x.backend.PID
	x.member.request, x.member.token = req, req.Token
	x.srv.crews.join(x, req)
	cand, err := x.srv.cfg.Candidates.Join(ctx, req, x)
	if err == nil {
		x.member.setCandidacy(cand)
		x.member.state.Store(joined)
	}
	return cand, err
}

// coreCandidacy returns what the core has to know of the candidacy.
func (x *session) coreCandidacy() protocol.Candidacy {
	cand := x.member.candidacy()
	return protocol.Candidacy{Resource: x.member.request.Resource, Incarnation: cand.Incarnation(), Status: cand.Status, Trouble: cand.Trouble}
}

// isShadowed reports whether the session names a resource that is in shadow.
func (x *session) isShadowed(policy SessionPolicy) bool {
	return x.start.Own.Resource != "" && policy.Shadow && fencing.Checking
}

// enterShadow is enter for a resource in shadow. Nothing keeps the client from Postgres: what
// would have refused the connection is recorded.
func (x *session) enterShadow(ctx *startupGuard, req fencing.JoinRequest, policy SessionPolicy, c *protocol.Config) error {
	x.srv.cfg.Metrics.Shadowed(x.start.Database, req.Resource)
	x.member.shadow = newBackground()
	cand, err := x.joinCandidacy(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		return handshake.ErrOver
	case err != nil:
		x.auditStartup(policy.Route.explain(refusals.Startup(err)))
		return nil
	}
	if policy.Fence == FenceTables && !x.hasGuards(ctx) {
		x.auditStartup(fencing.UnguardedRefusal(req.Resource))
	}
	var refusal *fencing.Refusal
	if err := x.awaitLease(ctx, req.Campaign); errors.As(err, &refusal) {
		x.auditStartup(refusal)
	} else if err != nil {
		return err
	}
	c.Candidacy, c.Worker, c.Nameless = x.coreCandidacy(), req.Worker, req.Nameless
	c.Shadow = shadow.New(shadow.Config{
		Resource: req.Resource, Worker: req.Worker, Incarnation: cand.Incarnation(), Nameless: req.Nameless,
		Version: c.Version, Cache: c.Cache, Status: cand.Status, Trouble: cand.Trouble,
		Campaign:  x.member.shadow.trigger(x.srv.cfg.StartupWait, cand.CampaignOnDemand),
		Announced: x.knownEpoch(cand.Status(), x.start.Began),
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

// knowsEpoch reports whether the client of a session that has joined its candidacy at the given time
// counts as knowing its worker's epoch as soon as it has read the reply. If the worker was
// superseded before, a driver may have opened this connection in order to send a statement again
// that was decided under an earlier epoch.
func knowsEpoch(cand fencing.Candidacy, announcePerConnection bool, e fencing.Epoch, at time.Time) bool {
	return !cand.SupersededBefore() || !announcePerConnection && cand.KnewAt(e, at)
}

// knownEpoch is the epoch of st if the client counts as knowing it (see knowsEpoch); otherwise 0.
func (x *session) knownEpoch(st *fencing.Status, at time.Time) fencing.Epoch {
	return knownEpochOf(x.member.candidacy(), x.member.announcePerConnection, st, at)
}

// knownEpochOf is knownEpoch for any candidacy.
func knownEpochOf(cand fencing.Candidacy, announcePerConnection bool, st *fencing.Status, at time.Time) fencing.Epoch {
	if st.CanWrite() && knowsEpoch(cand, announcePerConnection, st.Epoch, at) {
		return st.Epoch
	}
	return 0
}

// noStatus is the status of a connection without a resource.
var noStatus = &fencing.Status{}

// mode is how the writes of a session are treated.
type mode uint8

const (
	passing mode = iota // they pass: they are allowed unfenced, or in shadow
	reading             // they are refused: a connection without a resource
	fenced              // they pass while the worker leads and the backend is registered
)

// chooseMode returns the mode of the session.
func (x *session) chooseMode(policy SessionPolicy) (mode, error) {
	switch {
	case x.isShadowed(policy):
		return passing, nil
	case x.start.Own.Resource != "":
		return fenced, nil
	case policy.Unfenced == UnfencedRefuse:
		return 0, fencing.MissingResourceRefusal(x.start.User)
	case policy.Unfenced == UnfencedAllow, !fencing.Checking:
		return passing, nil
	default:
		return reading, nil
	}
}

// applyPolicy returns the policy of the session. From then on, the client counts as having named
// what the policy's route names for it.
func (x *session) applyPolicy() (SessionPolicy, error) {
	policy := x.srv.cfg.Policy(x.joinRequest())
	if policy.Refusal != nil {
		return policy, policy.Refusal
	}
	x.unfenced = policy.Unfenced
	if r := policy.Route; r.Name != "" {
		x.start.Own.ApplyRoute(r.Resource, r.Worker, r.Campaign)
	}
	return policy, x.start.Own.Validate()
}

// checkApplicationName notes that the client of a connection without a resource has set its application_name. If a route would have
// matched that name at the startup, the connection is not what the operator takes it for: its writes would pass
// unfenced, so renamed returns why it ends.
func (x *session) checkApplicationName(name string) *fencing.Refusal {
	if x.start.Own.Resource != "" {
		return nil
	}
	request := x.joinRequest()
	request.ApplicationName = name
	policy := x.srv.cfg.Policy(request)
	if policy.Route.Name == "" {
		return nil
	}
	x.srv.failing.renamed.Failed(zap.String("route", policy.Route.Name), zap.String("resource", policy.Route.Resource), zap.String("application_name", name),
		zap.String("user", x.start.User), zap.String("database", x.start.Database), zap.Stringer("client", x.client.RemoteAddr()), zap.String("remedy", renamedHint))
	if x.unfenced != UnfencedAllow {
		return nil
	}
	return &fencing.Refusal{
		SQLState: "22023",
		Message: fmt.Sprintf("application_name %q was set after connecting, too late for %s, which gives such connections resource %q: its further writes would pass unfenced, and what it has sent before may have been committed",
			fencing.ASCII(name), policy.Route.Name, policy.Route.Resource),
		Hint: renamedHint,
	}
}

// renamedHint says how a client sends its application_name in time.
const renamedHint = "Let the driver send application_name when it connects (pgjdbc: assumeMinServerVersion=9.0 in the URL), or name the resource by fencepost.resource."

// explain returns the refusal of a resource. If a route has named that resource, and not the
// client, the hint says so.
func (r Route) explain(refusal *fencing.Refusal) *fencing.Refusal {
	if r.Name == "" {
		return refusal
	}
	e := *refusal
	if e.Hint != "" {
		e.Hint += " "
	}
	e.Hint += "The connection named no resource: " + r.Name + " in Fencepost's configuration gave it this one."
	return &e
}

// joinRequest returns the candidacy that the client wants to join, as the client named it.
func (x *session) joinRequest() fencing.JoinRequest {
	own := x.start.Own
	var client netip.Addr // stays invalid for a local client
	if tcp, ok := x.client.RemoteAddr().(*net.TCPAddr); ok {
		client = tcp.AddrPort().Addr().Unmap()
	}
	return fencing.JoinRequest{
		Database: x.start.Database, User: x.start.User, Resource: own.Resource, Worker: own.Worker,
		Client: client, ApplicationName: x.start.ApplicationName(), Campaign: own.Campaign, WorkerTimeout: own.WorkerTimeout,
		Heartbeat: own.Heartbeat, Token: own.Token,
	}
}

// identify gives a worker id to a connection that names no worker.
func (x *session) identify(c *fencing.JoinRequest, by Identity) {
	if c.Worker != "" {
		return
	}
	switch by {
	case IdentityClientAddress:
		c.Worker = "client:" + fencing.ClientName(c.Client)
	case IdentityProxy:
		c.Worker = "proxy:" + x.srv.cfg.ProxyID
		c.Client = netip.Addr{} // all clients of this proxy are one worker
	default:
		c.Worker, c.Nameless = "connection:"+randomHex(8), true
	}
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// awaitLease waits for the candidacy's first attempt or, if the client requested that, until
// the worker leads. It also returns when the client or the server has gone, because a worker
// without a server connection must not lead.
func (x *session) awaitLease(guard *startupGuard, campaign fencing.CampaignMode) error {
	if campaign != fencing.CampaignWait {
		guard.pause()
		defer guard.resume()
		_ = x.member.candidacy().AwaitFirst(guard, x.srv.cfg.StartupWait) // the status says how it went
		return nil
	}
	if x.member.candidacy().Status().CanWrite() { // mostly of a worker that has other connections, or had some just now
		return nil
	}
	if err := x.handshake.SuspendIdleTimeout(); err != nil {
		return err
	}
	defer while(&x.active.waitingToLead)()
	if err := x.awaitLeader(guard); err != nil {
		return err
	}
	return x.handshake.RestoreIdleTimeout()
}

// awaitLeader waits until the worker leads. It also returns when the client or the server has gone.
func (x *session) awaitLeader(guard *startupGuard) error {
	guard.pause()
	defer guard.resume()
	ctx, stop := untilGone(guard, x.client, 0, errClientGone)
	defer stop()
	ctx, stopServer := untilGone(ctx, x.server, 0, errServerGone)
	defer stopServer()
	ctx, leave := x.srv.waiting.enter(ctx, x.member.request)
	defer leave()
	led := make(chan error, 1)
	go func() { led <- x.member.candidacy().AwaitLeader(ctx) }()
	err := x.notifyWaiting(led)
	switch {
	case errors.Is(err, handshake.ErrOver):
		x.log().Warn("a client that waits to lead does not read, and is disconnected",
			zap.String("resource", x.member.request.Resource), zap.String("worker", x.member.request.Worker))
		stop()
		<-led
		return err
	case errors.Is(context.Cause(ctx), errClientGone):
		return handshake.ErrOver
	case errors.Is(context.Cause(ctx), errServerGone):
		return nil // the next use of the server connection fails with the reason
	case err != nil && errors.Is(context.Cause(ctx), errNewerWait):
		return refusals.TooManyWait
	case err != nil:
		return refusals.Startup(err)
	}
	return nil
}

// notifyWaiting returns what arrives on led. Until then, it sends the client a NOTICE now and then,
// which says which worker it waits for and why. (Clients accept a NOTICE at any time of the startup.) It returns
// handshake.ErrOver if the client does not read.
func (x *session) notifyWaiting(led <-chan error) error {
	tick := time.NewTicker(x.srv.cfg.WaitNotice)
	defer tick.Stop()
	for {
		select {
		case err := <-led:
			return err
		case <-tick.C:
		}
		if err := x.sendStartupNotice(fencing.WaitNotice(x.start.Own.Resource, x.member.candidacy().Status(), x.member.candidacy().Trouble())); err != nil {
			return err
		}
	}
}

// sendStartupNotice sends the client a NOTICE, for at most StartupTimeout: a client that is frozen may have its kernel
// acknowledge everything for ever, and would be given the lead. It returns handshake.ErrOver then: the stream may end inside a message.
func (x *session) sendStartupNotice(notice *fencing.Refusal) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	if x.life.phase() != phaseStarting {
		return nil
	}
	defer while(&x.active.writing)()
	late := time.AfterFunc(x.srv.cfg.StartupTimeout, func() { _ = x.client.SetWriteDeadline(aLongTimeAgo) })
	_ = x.handshake.Send(refusals.AppendNotice(nil, notice)) // the guard notices that the client has gone
	if !late.Stop() {
		return handshake.ErrOver
	}
	return nil
}

// openCatalog lets a connection without a resource prove its reads, where read-only mode
// alone does not keep them from writing. It does not wait for the catalog: the first
// statement does, if it is not empty or harmless.
func (x *session) openCatalog(ctx context.Context) (catalog func() *fencing.Catalog, err error) {
	x.member.catalog, x.member.leaveCatalog, err = x.srv.cfg.Candidates.OpenCatalog(ctx, x.start.Database)
	if err != nil {
		return nil, err
	}
	return x.member.catalog.Catalog, nil
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
