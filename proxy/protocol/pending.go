package protocol

import "slices"

// pending follows what the server has been sent and has not answered, in order to know when it is at rest. It is a
// model of how PostgreSQL reads messages (PostgresMain in its postgres.c, CopyGetData in copyfromparse.c):
//
//   - A Query, a FunctionCall and a Sync are answered by ReadyForQuery in the end.
//   - Each other message of the extended protocol has one reply that completes it. After an error in one, the server
//     skips what it is sent, up to a Sync.
//   - While it reads COPY data, it ignores Flush and Sync. At other times, it ignores the end of COPY data.
type pending struct {
	queue   runs
	inBatch bool // extended messages were sent since the last Sync, Query or FunctionCall, which the server has not skipped
	// skipping means that the server skips what it is sent, up to a Sync. The queue is empty then.
	skipping bool
	copying  bool // what is first in the queue reads COPY data
	// maybe is how many ReadyForQuery may or may not come before any other reply, beyond those that the queue is owed:
	// after a COPY that has failed, the server may have ignored the Syncs that were sent after it, as part of its data.
	maybe int
	// lost means that the client has sent messages in an order from which no one can know how many
	// ReadyForQuery are due. The session is never at rest again.
	lost bool
}

// What pending distinguishes among the messages that are sent.
const (
	kindQuery   = 'Q' // a Query or a FunctionCall
	kindSync    = 'S'
	kindStep    = 'E' // another message of the extended protocol that has a reply
	kindFlush   = 'H'
	kindCopyEnd = 'c'
)

// sent records a message of the client's. body is the length of what has arrived of its body.
func (p *pending) sent(typ byte, body int) {
	switch typ {
	case 'Q', 'F':
		p.add(kindQuery)
	case 'S':
		p.skipping = false
		p.add(kindSync)
	case 'P', 'B', 'D', 'E', 'C':
		p.add(kindStep)
	case 'H':
		if body > 0 && !p.copying { // the server refuses it
			p.add(kindStep)
		} else if p.queue.last() == kindStep {
			p.add(kindFlush)
		}
	case 'c', 'f':
		if p.queue.len() > 0 {
			p.add(kindCopyEnd)
		}
	}
}

// add adds a message to the queue, unless the server skips it.
func (p *pending) add(kind byte) {
	if p.skipping {
		p.lost = p.lost || p.maybe > 0 // it does not skip it if one more ReadyForQuery comes
		return
	}
	p.queue.push(kind)
	p.inBatch = opensBatch(p.inBatch, kind)
}

// opensBatch reports whether a batch is open after a message.
func opensBatch(before bool, kind byte) bool {
	switch kind {
	case kindQuery, kindSync:
		return false
	case kindStep:
		return true
	default:
		return before
	}
}

// answered follows a message of the server's that is not ReadyForQuery.
func (p *pending) answered(typ byte) {
	switch typ {
	case 'N', 'A', 'S': // these come at any time
		return
	}
	p.maybe = 0
	switch typ {
	case 'G':
		p.copying = true
	case '1', '2', '3', 'n', 'T', 'I', 's', 'C':
		if p.copying {
			p.endCopy()
		}
		if p.queue.first() == kindStep {
			p.queue.pop()
		}
	case 'E':
		p.fail()
	}
	p.skipIgnored()
}

// fail follows an error.
func (p *pending) fail() {
	if p.copying {
		p.maybe = p.endCopy() // the server may have read all of these Syncs, or only some
		if p.maybe > 0 && p.queue.first() == kindQuery {
			p.queue.all[p.queue.head].kind = kindSync // its ReadyForQuery comes next
		}
	}
	if p.queue.first() != kindStep {
		return
	}
	p.queue.pop()
	for p.queue.len() > 0 && p.queue.first() != kindSync {
		kind := p.queue.pop()
		p.lost = p.lost || p.maybe > 0 && (kind == kindStep || kind == kindQuery)
	}
	if p.queue.len() == 0 {
		p.skipping, p.inBatch = true, true
	}
}

// endCopy removes what a COPY, which is first in the queue, may have read: the Syncs up to the end of its data, and
// that. It returns the number of these Syncs.
func (p *pending) endCopy() (syncs int) {
	p.copying = false
	all := p.queue.all[p.queue.head:]
	if len(all) == 0 {
		return 0
	}
	i, intruder := 1, all[0].n > 1 // the next message of the same kind
	for ; !intruder && i < len(all) && (all[i].kind == kindSync || all[i].kind == kindFlush); i++ {
		if all[i].kind == kindSync {
			syncs += all[i].n
		}
	}
	if !intruder && i < len(all) {
		if intruder = all[i].kind != kindCopyEnd; !intruder {
			if all[i].n--; all[i].n == 0 {
				i++
			}
		}
	}
	if intruder { // the COPY has failed because of a message that is not COPY data, or before the server read that
		p.lost = p.lost || all[0].kind == kindQuery || syncs > 0
	}
	p.queue.all = append(p.queue.all[:p.queue.head+1], all[i:]...)
	p.inBatch = false
	for _, r := range p.queue.all[p.queue.head:] {
		p.inBatch = opensBatch(p.inBatch, r.kind)
	}
	return syncs
}

// ready follows ReadyForQuery.
func (p *pending) ready() {
	p.skipping, p.copying = false, false
	switch first := p.queue.first(); {
	case first == kindSync, first == kindQuery && p.maybe == 0:
		p.queue.pop()
	case p.maybe > 0: // a Query is answered by something else first
		p.maybe--
	default:
		p.lost = true
	}
	p.skipIgnored()
}

// skipIgnored removes from the front what the server reads without a reply.
func (p *pending) skipIgnored() {
	for k := p.queue.first(); k == kindFlush || k == kindCopyEnd; k = p.queue.first() {
		p.queue.pop()
	}
}

// quiet reports that no reply is due.
func (p *pending) quiet() bool { return p.queue.len() == 0 && p.maybe == 0 && !p.lost }

// isSkipping reports that the server is known to skip what is sent now, up to a Sync.
func (p *pending) isSkipping() bool { return p.skipping && p.maybe == 0 && !p.lost }

// awaitsData reports that the server reads COPY data, of which it has not been sent the end.
func (p *pending) awaitsData() bool {
	return p.copying && !slices.ContainsFunc(p.queue.all[p.queue.head:], func(r run) bool { return r.kind == kindCopyEnd })
}

// isUncertain reports that waiting for replies might last for ever: it is not known whether one is due, or the server
// waits for the client.
func (p *pending) isUncertain() bool {
	return p.lost || p.awaitsData() || p.maybe > 0 && p.queue.len() == 0
}

// isWorking reports whether the server is known to be working for the client, which has asked for the result. inside
// says that only a part of the last message was sent.
func (p *pending) isWorking(inside bool) bool {
	if p.lost || p.awaitsData() {
		return false
	}
	all := p.queue.all[p.queue.head:]
	if p.copying && p.queue.first() != kindQuery { // a Sync among the data asks for nothing
		all = all[1+slices.IndexFunc(all, func(r run) bool { return r.kind == kindCopyEnd }):]
	}
	if n := len(all); inside && n > 0 && all[n-1] == (run{kindQuery, 1}) {
		all = all[:n-1]
	}
	return slices.ContainsFunc(all, func(r run) bool { return r.kind != kindStep && r.kind != kindCopyEnd })
}

// runs is a queue of kinds, in which successive equal ones take the room of one. It does not allocate once it has
// grown.
type runs struct {
	all  []run
	head int // all[head] is the first
}

type run struct {
	kind byte
	n    int
}

// len is the number of runs.
func (q *runs) len() int { return len(q.all) - q.head }

// first is the first kind, 0 if there is none.
func (q *runs) first() byte {
	if q.len() == 0 {
		return 0
	}
	return q.all[q.head].kind
}

// last is the last kind, 0 if there is none.
func (q *runs) last() byte {
	if q.len() == 0 {
		return 0
	}
	return q.all[len(q.all)-1].kind
}

func (q *runs) push(kind byte) {
	if q.last() == kind {
		q.all[len(q.all)-1].n++
		return
	}
	if q.head > 0 && len(q.all) == cap(q.all) {
		q.all, q.head = append(q.all[:0], q.all[q.head:]...), 0
	}
	q.all = append(q.all, run{kind, 1})
}

// pop removes one of the first kind.
func (q *runs) pop() byte {
	r := &q.all[q.head]
	kind := r.kind
	if r.n--; r.n == 0 {
		if q.head++; q.head == len(q.all) {
			q.all, q.head = q.all[:0], 0
		}
	}
	return kind
}
