package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/proxy/gate"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/protocol"
)

// registerTimeout bounds writing or deleting a note of the registry.
const registerTimeout = 5 * time.Second

// session is one client and its server connection. Two goroutines see to the
// bytes: up from the client to the server (the session's own goroutine), down
// from the server to the client; where they need not wait, the event loop moves
// the bytes for them. run owns both.
type session struct {
	srv    *Server
	id     string
	log    *zap.Logger
	start  *startup
	client link
	server link

	// clientSocket and serverSocket are client and server where those are not under
	// TLS, or else nil.
	clientSocket, serverSocket netloop.Conn

	cancel context.CancelFunc
	worker string            // as claimed
	cand   fencing.Candidacy // nil without a resource; set once, before joined
	crew   *crew             // nil without a resource; set before the candidacy knows of the session

	observer Observer

	fromClient *bufio.Reader // until run
	fromServer *bufio.Reader
	message    []byte
	parameters [][]byte
	version    gate.Version
	pid        uint32 // of the server's backend
	keyPID     uint32
	keySecret  []byte

	// sending is held from where the machine takes bytes of the server until what
	// it made of them was written, so that nothing is said to the client in front
	// of a reply or inside one. It is taken before mu.
	sending sync.Mutex

	downGone chan struct{} // closed when the pump that reads the server has ended; made by run

	active activity
	left   sync.Once

	// superseded and joined are read and set by the candidacy's loop too. joined
	// is set after cand.
	superseded, joined atomic.Bool

	// mu guards the machine and what follows. It is never held while blocking.
	mu                sync.Mutex
	m                 *protocol.Machine
	reading           bool // up is in its Read
	draining          bool
	goodbye           bool                 // the client was told why the session ends
	audited           bool                 // the statement that a superseded client tried was refused, for the audit
	over              bool                 // up must not read on
	announcement      *announcement        // a reply that tells waits for up to be quiet
	registration      fencing.Registration // the last one in the registry
	registrationStuck bool                 // a note may still be deleted, later: no other may be made
	upOver            bool                 // up has ended, and answers no more
	registrationGone  chan struct{}        // closed when the note that is being deleted is gone
	room              chan struct{}        // up waits for it to be closed, at needRoom
	downEnded         bool                 // nothing more is read of the server
	parting           *fencing.Refusal     // what the client is told when all else was said
}

// announcement is the meeting of the two pumps when a reply tells an epoch: down
// holds the reply until up has said whether bytes of the client's are pending.
type announcement struct {
	quiet chan bool     // up to down; has room for the answer
	sent  chan struct{} // closed by down
}

// answer says whether nothing of the client's is pending. If so, the reply is
// sent before up reads on; if not, nobody waits: the client may want to be read
// before it reads.
func (t *announcement) answer(quiet bool) {
	t.quiet <- quiet
	if quiet {
		<-t.sent
	}
}

// asked takes the question of the other pump, nil if there is none. x.mu is
// held.
func (x *session) asked() *announcement {
	t := x.announcement
	x.announcement = nil
	return t
}

var _ fencing.Member = (*session)(nil)

func newSession(s *Server, client, server link, start *startup) *session {
	x := &session{
		srv: s, id: randomHex(6), start: start, client: client, server: server, log: zap.NewNop(), observer: nobody{},
		fromClient: bufio.NewReader(client), fromServer: bufio.NewReader(server),
	}
	x.clientSocket, _ = client.(netloop.Conn)
	x.serverSocket, _ = server.(netloop.Conn)
	return x
}

// close frees what the session has, however far it came.
func (x *session) close() {
	_ = x.server.Close()
	_ = x.client.Close()
	x.leave(false)
	if x.keyPID != 0 {
		x.srv.keys.remove(x.keyPID)
	}
}

// leave ends the membership, once.
func (x *session) leave(orderly bool) {
	if x.cand != nil {
		x.left.Do(func() { x.cand.Leave(x, orderly) })
	}
	x.srv.crews.leave(x)
}

// StatusChanged implements fencing.Member: when the candidacy is superseded,
// the server's backend is ended at once, and the client is told at its next
// use, so that its pool sees an error and not a connection to replace.
func (x *session) StatusChanged() {
	if fencing.Checking && x.joined.Load() && x.cand.Status().Role == fencing.Superseded {
		x.superseded.Store(true)
		_ = x.server.Close()
	}
}

// drain ends the session at its next safe point.
func (x *session) drain() {
	x.mu.Lock()
	x.draining = true
	starting, reading := x.m == nil, x.reading
	x.mu.Unlock()
	if starting {
		x.cancel()
	}
	if starting || reading {
		_ = x.client.SetReadDeadline(aLongTimeAgo)
	}
}

func (x *session) isDraining() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.draining
}

// abort ends the session now.
func (x *session) abort() {
	_ = x.client.Close()
	_ = x.server.Close()
	x.cancel()
}

// run relays until one side ends.
func (x *session) run(ctx context.Context) {
	x.downGone = make(chan struct{})
	go func() {
		defer close(x.downGone)
		x.down(ctx)
		x.mu.Lock()
		x.downEnded = true
		x.makeRoomLocked()
		x.mu.Unlock()
	}()
	orderly := x.up(ctx)
	x.upEnds()
	x.leave(orderly)
	// The server sees the end of input as from the client itself: it answers
	// what it was sent, and ends.
	_ = x.server.CloseWrite()
	<-x.downGone
	linger(x.client)
}

// upEnds says that nothing more is read of the client, so that the other pump
// does not wait for it.
func (x *session) upEnds() {
	x.mu.Lock()
	x.upOver = true
	x.m.ClientEnded()
	t := x.asked()
	x.mu.Unlock()
	if t != nil {
		t.answer(false)
	}
}

// hangUp ends the session from the other pump: what was said to the client is
// followed by the end of input, and up is woken.
func (x *session) hangUp() {
	x.mu.Lock()
	x.over = true
	parting := x.parting
	x.mu.Unlock()
	if parting != nil {
		x.say(parting)
	}
	_ = x.client.CloseWrite()
	_ = x.client.SetReadDeadline(aLongTimeAgo)
}

// lingerTime and lingerBytes bound what is read of a client that was told that
// its session is over. Closing with bytes unread would reset the connection,
// and the client might never see why.
const (
	lingerTime  = time.Second
	lingerBytes = 1 << 20
)

func linger(client link) {
	_ = client.CloseWrite()
	_ = client.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, client, lingerBytes) // the connection ends either way
}

// say sends a FATAL error to the client, behind what is being sent, if it was
// not told one yet.
func (x *session) say(r *fencing.Refusal) {
	x.mu.Lock()
	x.upOver = true // or down is: nothing is told any more
	t := x.asked()
	x.mu.Unlock()
	if t != nil {
		t.answer(false) // down waits for it and holds sending
	}
	x.sending.Lock()
	defer x.sending.Unlock()
	x.mu.Lock()
	first := !x.goodbye && !(x.m != nil && x.m.InsideReply())
	x.goodbye = true
	x.mu.Unlock()
	if first {
		refuse(x.client, r)
	}
}

// supersededRefusal is what the client is told at its next use.
func (x *session) supersededRefusal() *fencing.Refusal {
	return fencing.SupersededRefusal(x.start.own.resource, x.worker, x.cand.Incarnation(), x.cand.Status())
}

// saySuperseded tells the client that its candidacy is over, and audits the
// statement it tried, if any: once, though both pumps may find the server gone.
func (x *session) saySuperseded(text string, write bool) {
	r := x.supersededRefusal()
	x.mu.Lock()
	audit := text != "" && !x.audited
	x.audited = x.audited || audit
	var rejection fencing.Rejection
	if audit {
		rejection = x.m.Rejection(r, text, write)
		rejection.Time = time.Now()
	}
	x.mu.Unlock()
	x.say(r)
	if audit {
		x.audit(rejection)
	}
}

// closedByPeer reports whether err is the ordinary end of a connection.
func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
