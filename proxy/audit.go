package proxy

import (
	"strings"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// auditQueueSize is how many rejections may wait for the auditors. Each holds at most 4
// KiB of a statement, so they take about a megabyte.
const auditQueueSize = 256

// auditQueue passes rejections to the auditors, in order, from one goroutine that owns
// them. A session adds a rejection after its client has the error, so that no error waits
// for a log.
//
// When the queue is full, the session that made the rejection waits, without a lock and
// before it relays anything more. Nothing is dropped: a refused write may be the only
// trace of a process that works under a lease it has lost, and the record of a system
// that handles money must not have gaps. A client that is refused faster than the
// auditors can record is slowed down to their speed; sessions whose statements are not
// refused never wait.
type auditQueue struct {
	auditors   []fencing.Auditor
	rejections chan fencing.Rejection
	done       chan struct{} // closed after close, when all rejections are recorded
}

func newAuditQueue(auditors []fencing.Auditor) *auditQueue {
	q := &auditQueue{auditors: auditors, rejections: make(chan fencing.Rejection, auditQueueSize), done: make(chan struct{})}
	go q.run()
	return q
}

func (q *auditQueue) run() {
	defer close(q.done)
	for r := range q.rejections {
		for _, a := range q.auditors {
			a.Audit(r)
		}
	}
}

// add waits while the queue is full. It must not be called after close, nor on the event
// loop.
func (q *auditQueue) add(r fencing.Rejection) { q.rejections <- r }

// close returns when everything that was added is recorded.
func (q *auditQueue) close() {
	close(q.rejections)
	<-q.done
}

// audit records a refused statement, and adds what the core does not know about the
// session.
func (x *session) audit(r fencing.Rejection) {
	r.Proxy, r.Session, r.Client = x.srv.cfg.ProxyID, x.id, x.client.RemoteAddr().String()
	r.Database, r.User = x.start.Database, x.start.User
	defer while(&x.active.auditing)()
	x.srv.audit.add(r)
}

// postponeAudit reports whether r, which ends the session, is audited only when both pumps have ended: nothing
// that is known may write, and the up pump holds more of the client's messages. The session's mu is held.
func (x *session) postponeAudit(r *fencing.Rejection) bool {
	if r.Write || !x.m.Is(protocol.Holding) {
		return false
	}
	x.life.postponed = r
	return true
}

// auditPostponed audits what was postponed. held is what the up pump has not taken.
func (x *session) auditPostponed(held []byte) {
	r := x.life.postponed // which no one else uses any more
	if r == nil {
		return
	}
	x.mu.Lock()
	if tried := x.m.Attempt(held); tried.Write || r.Statement == "" {
		r.Statement, r.Write = strings.Clone(tried.Text), tried.Write
	}
	x.mu.Unlock()
	x.audit(*r)
}

// audit records the statements that the last step refused. It is called when the client has
// what that step relays, or has gone.
func (d *downPump) audit() {
	for i := range d.events {
		if r := d.events[i].Rejection; r != nil {
			d.x.audit(*r)
		}
	}
}
