package proxy

import (
	"context"

	"github.com/fencepost/fencepost/proxy/protocol"
)

// meet does what the machine needs before it can take more from the client.
func (x *session) meet(ctx context.Context, n protocol.Need) {
	defer while(&x.active.busy)()
	switch n {
	case protocol.NeedRegister:
		r := x.register(ctx)
		x.mu.Lock()
		x.m.Registered(r)
		x.mu.Unlock()
		return
	case protocol.NeedCatalog:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.member.cand.Fence().RefreshCatalog(wait)
		cancel()
		x.mu.Lock()
		x.m.Refreshed()
		x.mu.Unlock()
		return
	case protocol.NeedAnalysis:
		x.analyze()
		return
	case protocol.NeedCampaign:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		x.member.cand.CampaignOnDemand(wait)
		cancel()
	case protocol.NeedConfirm:
		wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
		_ = x.member.cand.AwaitConfirmed(wait) // the status says how it went
		cancel()
	}
	x.mu.Lock()
	x.m.Asked(n)
	x.mu.Unlock()
}

// analyze analyzes the text that the machine waits for. It does not hold the session's lock,
// because a long text takes up to half a second and may have to wait for other texts. Roles
// take turns, and within a role the leaders and the other workers, so that nobody waits for
// all the texts of another.
func (x *session) analyze() {
	x.mu.Lock()
	sql, settings := x.m.WantedAnalysis()
	key := x.start.user
	if x.m.MayWrite() {
		key += "\x00leader" // the name of a role has no NUL byte
	}
	x.mu.Unlock()
	leave := x.srv.parsing.enter(key)
	t := x.srv.analyze(sql, settings)
	leave()
	x.mu.Lock()
	x.m.Analyzed(t)
	x.mu.Unlock()
}
