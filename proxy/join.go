package proxy

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/fencepost/fencepost/fencing"
)

// join makes the connection a member of its candidacy, if it names a resource,
// and waits for the lease as it asked to. told is what the connection knows
// from the start.
func (x *session) join(ctx context.Context) (st *fencing.Standing, told fencing.Epoch, err error) {
	md, err := x.chooseMode()
	if err != nil {
		return nil, 0, err
	}
	var c checks
	standing := func() *fencing.Standing { return noStanding }
	if md == fencedMode {
		claim := x.claim()
		x.worker = claim.Worker
		x.srv.crews.join(x, claim)
		cand, err := x.srv.cfg.Candidates.Join(ctx, claim, x)
		if err != nil {
			return nil, 0, faultRefusal(err)
		}
		x.cand = cand
		x.joined.Store(true)
		x.StandingChanged() // it may have been told before
		if err := cand.Fence().MayEnd(ctx, x.pid); err != nil {
			return nil, 0, faultRefusal(err)
		}
		if err := x.awaitLease(ctx, claim.Campaign); err != nil {
			return nil, 0, err
		}
		standing = x.cand.Standing
		x.awaitCatalogue(ctx)
		c = newChecks(randomHex(6), x.cand.Fence().ID(), claim.Resource, claim.Worker, x.cand.Incarnation())
	} else {
		c = newChecks(randomHex(6), 0, "", "", "")
	}
	m := newMachine(md, x.version, standing, x.srv.cache, c)
	m.unfencedBy = unfencedRefusal(x.start.user)
	if md == fencedMode {
		m.catalogue = x.cand.Fence().Catalogue
		m.provenReads = x.srv.cfg.ProvenReads(x.start.database, x.start.own.resource)
	}
	for _, body := range x.parameters {
		m.parameter(body)
	}
	if md != passing {
		if err := x.prepareChecks(m); err != nil {
			return nil, 0, err
		}
	}
	x.mu.Lock()
	x.m = m // from here on the candidacy looks at it too
	x.mu.Unlock()
	st = standing()
	if st.May() && !x.cand.SupersededBefore() {
		told = st.Epoch
	}
	return st, told, nil
}

var noStanding = &fencing.Standing{}

func (x *session) chooseMode() (mode, error) {
	if x.start.own.resource != "" {
		return fencedMode, nil
	}
	switch x.srv.cfg.Unfenced(x.start.user) {
	case UnfencedAllow:
		return passing, nil
	case UnfencedRefuse:
		return 0, missingResource(x.start.user)
	default:
		return reading, nil
	}
}

// claim names the candidacy that the connection belongs to.
func (x *session) claim() fencing.Claim {
	own := x.start.own
	addr, _ := netip.ParseAddrPort(x.client.RemoteAddr().String())
	c := fencing.Claim{
		Database: x.start.database, User: x.start.user, Resource: own.resource, Worker: own.worker,
		Client: addr.Addr().Unmap(), Campaign: own.campaign, WorkerTimeout: own.workerTimeout,
	}
	if c.Worker != "" {
		return c
	}
	switch x.srv.cfg.Identity {
	case IdentityClientAddress:
		c.Worker = "client:" + c.Client.String()
	case IdentityProxy:
		c.Worker = "proxy:" + x.srv.cfg.ProxyID
		c.Client = netip.Addr{} // all clients of this proxy are one worker
	default:
		c.Worker, c.Nameless = "connection:"+randomHex(8), true
	}
	return c
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// awaitLease waits for the candidacy's first attempt, or, where the connection
// asked for it, until the worker leads. It ends when the client or the server goes
// away.
func (x *session) awaitLease(ctx context.Context, campaign fencing.CampaignMode) error {
	if campaign == fencing.CampaignWait {
		ctx, stop := x.whileClientThere(ctx)
		ctx, stopServer := x.whileServerThere(ctx)
		err := x.cand.AwaitLeader(ctx)
		serverGone := stopServer()
		if gone := stop(); gone {
			return errOver
		}
		if serverGone {
			return nil // what comes next finds out how it ended
		}
		if err != nil {
			return faultRefusal(err)
		}
		return nil
	}
	_ = x.cand.AwaitFirst(ctx, x.srv.cfg.StartupWait) // its standing says how it went
	return nil
}

// awaitCatalogue waits for the database's catalogue where reads may have to be
// proven, so that what the client prepares first can be.
func (x *session) awaitCatalogue(ctx context.Context) {
	f := x.cand.Fence()
	wanted := x.version < readOnlyHolds || x.srv.cfg.ProvenReads(x.start.database, x.start.own.resource)
	if !wanted || f.Catalogue() != nil {
		return
	}
	wait, cancel := context.WithTimeout(ctx, x.srv.cfg.StartupWait)
	defer cancel()
	f.RefreshCatalogue(wait)
}

// whileClientThere returns a context that ends when the client closes its
// connection. stop reports whether that happened.
func (x *session) whileClientThere(parent context.Context) (ctx context.Context, stop func() (gone bool)) {
	ctx, cancel := context.WithCancel(parent)
	done := make(chan bool, 1)
	go func() {
		_, err := x.fromClient.Peek(1)
		var timeout net.Error
		gone := err != nil && !(errors.As(err, &timeout) && timeout.Timeout())
		if gone {
			cancel()
		}
		done <- gone
	}()
	return ctx, func() bool {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
		gone := <-done
		_ = x.client.SetReadDeadline(time.Time{})
		cancel()
		return gone
	}
}

// whileServerThere returns a context that ends when the server closes its
// connection: a worker without a server must not lead. stop reports whether that
// happened.
func (x *session) whileServerThere(parent context.Context) (ctx context.Context, stop func() (gone bool)) {
	ctx, cancel := context.WithCancel(parent)
	done := make(chan bool, 1)
	go func() {
		gone := serverGone(x.fromServer)
		if gone {
			cancel()
		}
		done <- gone
	}()
	return ctx, func() bool {
		_ = x.server.SetReadDeadline(aLongTimeAgo)
		gone := <-done
		_ = x.server.SetReadDeadline(time.Time{})
		cancel()
		return gone
	}
}

// serverGone waits until an idle server ends its connection, which it may
// explain before, or until the read's deadline. It consumes nothing.
func serverGone(from *bufio.Reader) bool {
	for n := 1; ; n = from.Buffered() + 1 {
		head, err := from.Peek(n)
		var timeout net.Error
		switch {
		case len(head) > 0 && head[0] == 'E': // all errors of an idle server are fatal
			return true
		case errors.Is(err, bufio.ErrBufferFull), errors.As(err, &timeout) && timeout.Timeout():
			return false
		case err != nil:
			return true
		}
	}
}

// aLongTimeAgo as a deadline wakes a blocked read at once.
var aLongTimeAgo = time.Unix(1, 0)
