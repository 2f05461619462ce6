package proxy

import (
	"context"
	"runtime"
	"time"

	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/fairqueue"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// catalogWait bounds how long a read waits for the catalog that proves it, which a busy
// server may take long to answer. It is longer than the two polls that this may need, which
// fail after ten seconds each.
const catalogWait = 25 * time.Second

// meetNeed does what the core needs before it can take more from the client. A cancel request
// of the client ends the wait for that, or is answered after it. It reports false if ctx ended first, so that nothing
// more can be taken.
func (x *session) meetNeed(ctx context.Context, n protocol.Need) bool {
	defer while(&x.active.busy)()
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	x.mu.Lock()
	x.pumps.stopWait = stop
	x.mu.Unlock()
	answer := protocol.Answer{Need: n.Kind}
	switch n.Kind {
	case protocol.NeedRegister:
		// It is not canceled: no one would know then whether the backend is registered.
		answer.Resource, answer.Refusal = x.register(ctx, n.Register)
	case protocol.NeedUnregister:
		x.unregisterAll(ctx) // not canceled either
	case protocol.NeedCatalog:
		wait, cancel := context.WithTimeout(waiting, catalogWait)
		x.member.catalog.RefreshCatalog(wait)
		cancel()
	case protocol.NeedAnalysis:
		text, err := x.analyze(ctx, n.Text, n.Settings) // the core cannot continue without it
		if err != nil {
			return false
		}
		answer.Text = text
	case protocol.NeedCampaign:
		wait, cancel := context.WithTimeout(waiting, x.srv.cfg.StartupWait)
		x.membership(n.Resource).candidacy().CampaignOnDemand(wait)
		cancel()
	case protocol.NeedConfirm:
		wait, cancel := context.WithTimeout(waiting, x.srv.cfg.StartupWait)
		_ = x.membership(n.Resource).candidacy().AwaitConfirmed(wait) // the status says how it went
		cancel()
	}
	x.answer(answer)
	return true
}

// answer gives the core the answer to a need.
func (x *session) answer(a protocol.Answer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	a.Canceled = x.pumps.endWait()
	x.m.Answer(a)
}

// cancelWait takes a cancel request of the client, and reports whether it is one for the server
// too. If the client's message waits for something that the proxy does, and the server works on
// nothing that was sent before, the message is answered as canceled. While earlier messages are
// unanswered because no one has asked for an answer, the server may still be running one of them,
// or not: the request is for both then. In shadow nothing is answered in the server's place.
func (x *session) cancelWait() (deliver bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pumps.stopWait == nil || x.member.shadow != nil || x.m.Is(protocol.Working) {
		return true
	}
	x.pumps.canceled = true
	x.pumps.stopWait()
	return x.m.Is(protocol.ReplyPending)
}

// analyze analyzes the text that the core waits for. It does not hold the session's lock,
// because a long text takes up to half a second and may have to wait for other texts. Roles
// take turns, and within a role the leaders and the other workers, so that no one waits for
// all the texts of another. The error is that of ctx if it ended before it was this text's turn.
func (x *session) analyze(ctx context.Context, sql string, settings sqltext.Settings) (*sqltext.Text, error) {
	x.mu.Lock()
	key := x.start.User
	if x.m.Is(protocol.Leading) {
		key += "\x00leader" // the name of a role has no NUL byte
	}
	x.mu.Unlock()
	return x.srv.analyst.text(ctx, key, sql, settings)
}

// cacheBytes bounds the cache of analyzed texts, which all sessions share.
const cacheBytes = 32 << 20

// analyst analyzes the texts of all sessions that are too long for their cores, some at a
// time.
type analyst struct {
	cache   *sqltext.Cache                                            // the cores use it too
	analyze func(sql string, settings sqltext.Settings) *sqltext.Text // may take half a second
	turns   *fairqueue.Queue                                          // for calls of analyze
}

func newAnalyst() analyst {
	cache := sqltext.NewCache(cacheBytes)
	return analyst{cache: cache, analyze: cache.Analyze, turns: fairqueue.New(max(1, runtime.GOMAXPROCS(0)/2))}
}

// text returns the analysis of sql. It waits for the turn of key, and returns ctx's error if
// ctx ends before that.
func (a *analyst) text(ctx context.Context, key, sql string, settings sqltext.Settings) (*sqltext.Text, error) {
	leave, err := a.turns.Enter(ctx, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	return a.analyze(sql, settings), nil
}
