package election

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/status"
	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
)

// request is a kind of request to the lease service or the fence.
type request uint8

const (
	requestAcquire request = iota
	requestGrant
	requestRenew
	requestRelease
	requestUnblock // waits until what blocked a grant has ended; it asks for nothing
	requestKinds
)

var requestNames = [requestKinds]string{"acquire", "grant", "renew", "release", "unblock"}

func (k request) String() string { return requestNames[k] }

// requests are the requests that a candidacy has in flight, at most one of each kind. A
// grant or a renewal may outlast its lease: its result then says nothing about the next
// lease. An acquire and a release exclude each other, because the lease service could
// process them in either order.
type requests struct {
	inFlight [requestKinds]bool
	stops    [requestKinds]context.CancelFunc // nil: not to be cancelled
}

// begin records that a request of kind k is about to be sent. stop, if not nil, cancels
// it. begin panics if the request must not be sent now, which is a mistake of the caller.
func (q *requests) begin(k request, stop context.CancelFunc) {
	excluded := k
	switch k {
	case requestAcquire:
		excluded = requestRelease
	case requestRelease:
		excluded = requestAcquire
	}
	for _, other := range []request{k, excluded} {
		if q.inFlight[other] {
			panic(fmt.Sprintf("election: a request to %v while one to %v is in flight", k, other))
		}
	}
	q.inFlight[k], q.stops[k] = true, stop
}

// end records that the result of the request of kind k is known.
func (q *requests) end(k request) { q.inFlight[k], q.stops[k] = false, nil }

// has reports whether a request of kind k is in flight.
func (q *requests) has(k request) bool { return q.inFlight[k] }

// any reports whether any request is in flight.
func (q *requests) any() bool { return slices.Contains(q.inFlight[:], true) }

// changes reports whether a request is in flight that may change what the candidacy holds.
func (q *requests) changes() bool { return slices.Contains(q.inFlight[:requestUnblock], true) }

// cancel cancels the request of kind k, if one is in flight. It stays in flight until
// its result is known.
func (q *requests) cancel(k request) {
	if stop := q.stops[k]; stop != nil {
		stop()
	}
}

// troubles are what the last requests of a candidacy have shown to be wrong with the lease service and the fence.
type troubles struct {
	unansweredSince time.Duration // when the first of the requests was sent that the lease service has not answered
	unserved        error         // why the last request to the lease service failed; nil if it was answered
	ungranted       error         // why the last grant failed
	// fault, if not nil, says why the fence, or the order of the awards, is unusable.
	fault error
	// notNewer counts the consecutive awards that were not newer than the record.
	notNewer int
	// disagrees means that the database contradicts the candidacy's term, which has to
	// be given up.
	disagrees bool
}

// leaseAnswered records the result of a request to the lease service: nil if it answered.
func (a *troubles) leaseAnswered(err error, sent time.Duration) {
	if a.unserved == nil {
		a.unansweredSince = sent
	}
	a.unserved = err
}

// trouble returns what these results show; nil if nothing is wrong. source is the name of
// the lease service; unreached means that the database does not answer.
func (a *troubles) trouble(source string, unreached bool, now time.Duration) *fencing.Trouble {
	var denied *elector.DeniedError
	var network net.Error
	service := source
	if service != "" {
		service = strings.ToUpper(source[:1]) + source[1:]
	}
	silence := max(now-a.unansweredSince, 0).Round(time.Second)
	switch {
	case errors.As(a.unserved, &denied) && denied.Answer == "":
		return &fencing.Trouble{Problem: denied.Error(), Remedy: denied.Remedy}
	case denied != nil:
		return &fencing.Trouble{Problem: fmt.Sprintf("the lease service refuses Fencepost (%s)", denied.Answer), Remedy: denied.Remedy}
	case errors.Is(a.unserved, context.DeadlineExceeded), errors.As(a.unserved, &network) && (network.Timeout() || isConnectionError(network)):
		return &fencing.Trouble{Problem: fmt.Sprintf("%s has not answered for %v", service, silence)}
	case network != nil: // such as a certificate that is not accepted
		cause := error(network)
		if request, ok := cause.(*url.Error); ok {
			cause = request.Err // the rest of it names sessions
		}
		return &fencing.Trouble{Problem: fmt.Sprintf("%s has not answered for %v (%v)", service, silence, cause)}
	case a.unserved != nil:
		return &fencing.Trouble{Problem: fmt.Sprintf("%s has answered only with errors for %v (%v)", service, silence, a.unserved), Remedy: elector.RemedyOf(a.unserved, "")}
	case unreached:
		return &fencing.Trouble{Problem: errUnreached.Error()}
	case a.ungranted != nil:
		return &fencing.Trouble{Problem: fmt.Sprintf("the grant of an epoch fails (%v)", a.ungranted)}
	}
	return nil
}

// isConnectionError reports whether err says that a connection could not be made, or broke.
func isConnectionError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op != "remote error" // which is what the other side says by TLS
}

// noToken keeps whoever has brought no token from leading where that decides.
var noToken = &fencing.Trouble{
	Problem: "its connection has brought no token",
	Remedy:  "When the application's elector has elected this worker, give its token: by SET fencepost.token = '42', or when connecting, by the startup option fencepost.token=42.",
}

// noTokenYet is noToken where tokens are to decide no longer.
var noTokenYet = &fencing.Trouble{
	Problem: "its connection has brought no token",
	Remedy:  "resources.<name>.election is lease in Fencepost's configuration since this Fencepost has first used the resource. " + whenIdle,
}

// sameWorker keeps a worker from leading while another process of that name does.
var sameWorker = &fencing.Trouble{
	Problem: "a process with the same worker id leads through another proxy",
	Remedy:  "If that is an earlier life of this worker, its lease ends with its connections, or expires. Otherwise give each process a worker id of its own.",
}

// Trouble implements fencing.Candidacy. A candidacy that leaves the lease to another one of
// this proxy sends no requests: its trouble is that of the other.
func (c *Candidacy) Trouble() *fencing.Trouble {
	if c.r.tokenProvider != nil && c.token == 0 {
		if !c.r.settings().Tokens {
			return noTokenYet
		}
		return noToken
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	who, holder := c.r.leaderLocked(), c.r.mu.holder
	switch {
	case who == status.LeaderElsewhere && c.r.mu.record.Worker == c.worker:
		return sameWorker
	case who == status.LeaderElsewhere:
		return nil // what the last request was answered, before that, does not matter any more
	case holder == nil:
		holder = c
	}
	if t := holder.ownTroubleLocked(); t != nil {
		return t
	}
	since, failures := c.r.watcher.unwatched.Now()
	if c.r.mu.watchErr == nil || failures == 0 {
		return nil
	}
	a := troubles{unserved: c.r.mu.watchErr}
	return a.trouble(c.r.provider.Source(), false, time.Since(since))
}

func (c *Candidacy) ownTroubleLocked() *fencing.Trouble {
	if c.requests.has(requestGrant) || c.requests.has(requestUnblock) {
		if by := c.fence.BlockedBy(); len(by) > 0 {
			return &fencing.Trouble{Problem: "the grant of an epoch is blocked: " + strings.Join(by, "; ")}
		}
	}
	return c.trouble(c.r.provider.Source(), c.r.mu.unreached, c.r.e.cfg.Now())
}

// ungrantedLocked returns why the last grant failed, nil if that counts no longer. Of what blocked it, it names what is
// left.
func (c *Candidacy) ungrantedLocked() error {
	var blocked interface{ BlockedBy() []string }
	if !errors.As(c.ungranted, &blocked) || !c.requests.has(requestUnblock) {
		return c.ungranted
	}
	by := c.fence.BlockedBy()
	if len(by) == 0 { // the result of AwaitUnblocked is on its way
		return nil
	}
	return fmt.Errorf("it is blocked: %s", strings.Join(by, "; "))
}

// failures are the failures of each kind of request of one candidacy.
type failures map[string]*faults.Series

// of returns the series of what was tried.
func (f failures) of(log *zap.Logger, what string) *faults.Series {
	if f[what] == nil {
		f[what] = faults.NewSeries(log.With(zap.String("request", what)), "request failed", 0)
	}
	return f[what]
}

// passedLocked records that what was tried has succeeded, or was answered at all.
func (c *Candidacy) passedLocked(what string) {
	if s := c.failing[what]; s != nil {
		s.Passed()
	}
}

// noted records what has become of something that was tried without the lock: it has succeeded if err is nil.
func (c *Candidacy) noted(what string, err error) {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if err == nil {
		c.passedLocked(what)
	} else {
		c.failedLocked(what, err)
	}
}

func (c *Candidacy) failedLocked(what string, err error) {
	if c.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return // cancelled by this candidacy
	}
	err = fmt.Errorf("%s: %w", what, err)
	c.failing.of(c.log, what).Failed(zap.Error(err))
	c.event(Event{Kind: EventFailed, Err: err})
}
