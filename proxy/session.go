package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/internal/lockorder"
	"github.com/fencepost/fencepost/proxy/handshake"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/protocol"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/upstream"
)

// session is one client and its server connection. Two pumps relay the bytes: the up pump from
// the client to the server, and the down pump from the server to the client. While a pump would
// only wait, the event loop relays the bytes for it, and it has no goroutine. So an idle session
// has none. The up pump ends the session, when the down pump has ended.
//
// Three rules say who may use which field:
//
//   - The fields above sending are set during the startup, before the pumps run, and do
//     not change afterwards, except for atomics, which the candidacy's loop and those who
//     ask for the server's connections use too.
//   - The fields below mu are guarded by mu, except that the phase in life may be read
//     without it. mu is never held while blocking.
//   - sending is taken before mu (package lockorder).
type session struct {
	srv    *Server
	id     string
	start  *startup.Request
	client link
	server link
	// handshake is what is needed to read messages during the startup. It is nil after
	// that.
	handshake *handshake.Handshake
	unfenced  UnfencedMode // what the connection may do if it names no resource
	movable   bool         // by its policy, another process may continue the session in an upgrade
	backend   backend
	member    memberships
	active    activity
	// startupOnlyUntil is a time before which the client has sent nothing but its startup.
	startupOnlyUntil time.Time
	greeted          atomic.Bool
	downGone         chan struct{} // made by relay, and closed when the down pump has ended
	before           Traffic       // in the processes that have passed the session on to this one

	// sending is held from when the core takes bytes from the server until the result
	// has been written to the client, so that nothing else is sent to the client before that
	// reply or inside it.
	sending lockorder.Mutex[lockorder.Sending]
	renamed string // the last application_name that the client has set since its startup; guarded by sending

	mu            lockorder.Mutex[lockorder.Session]
	ctx           context.Context    // see context; nil while there is none
	cancel        context.CancelFunc // of ctx
	m             *protocol.Session  // nil until the session has joined
	life          lifecycle
	pumps         pumpSignals
	since         time.Time // when the client last sent something, or its last reply ended, if that is later
	registrations registrations
	// deletions delete entries while no one waits for that.
	deletions sync.WaitGroup
}

// link is the connection of a session with its client or its server, maybe under TLS.
type link = netloop.Conn

// socketBelow returns the socket that carries a link.
func socketBelow(l link) netloop.Conn {
	if secured, ok := l.(*pgtls.Conn); ok {
		return secured.NetConn().(netloop.Conn)
	}
	return l
}

func newSession(s *Server, client, server link, start *startup.Request) *session {
	x := &session{srv: s, id: randomHex(6), start: start, client: client, server: server, since: start.Began}
	x.active.busy.Store(true) // until the client is greeted
	return x
}

// log returns a logger that names the session. It is made when there is something to log, because few sessions
// ever log anything.
func (x *session) log() *zap.Logger {
	return x.srv.cfg.Logger.With(zap.String("session", x.id), zap.String("database", x.start.Database),
		zap.String("user", x.start.User), zap.Stringer("client", x.client.RemoteAddr()))
}

// close frees the session's resources, in whatever phase it is.
func (x *session) close() {
	x.srv.unregister(x)
	_ = x.server.Close()
	_ = x.client.Close()
	x.member.shadow.end()
	x.leave(false) // no one begins another deletion after that
	x.deletions.Wait()
	if x.backend.keyPID != 0 {
		x.srv.keys.remove(x.backend.keyPID)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cancel != nil {
		x.cancel()
	}
}

// relay starts the pumps, which begin with what the startup has read ahead. It returns when the up pump only waits, or
// the session is over.
func (x *session) relay() {
	d := &downPump{x: x}
	u := &upPump{x: x, down: d, waiting: x.startupOnlyUntil}
	if read := x.handshake; read != nil { // there was none in this process if another one has passed the session on
		u.in.have, d.in.have = read.ReadAhead(u.in.room()), read.ReadAheadOfServer(d.in.room())
		x.handshake, x.backend.Parameters = nil, nil // which no one needs any more
		x.dropContext()
	}
	x.downGone = make(chan struct{})
	go d.run(nil)
	u.start()
}

// finish ends the session. orderly says that the client has sent Terminate. held is what the up pump has not taken.
func (x *session) finish(orderly bool, held []byte) {
	x.stopReading(nil)
	x.logConnection("client disconnected") // while it has its role
	x.leave(orderly)
	x.endInput(orderly)
	<-x.downGone
	x.auditPostponed(held)
	x.auditShadow()
	linger(x.client)
	x.close()
	x.srv.slots.Give()
	x.srv.end(socketBelow(x.client))
}

// endInput lets the server see the end of its input, as from the client itself: it answers what it was sent, and
// ends. orderly says that this ends with Terminate. The server reads nothing after that, and a connection that is
// closed with input unread is reset, which loses what has not arrived of the last replies. So TLS does not say
// that it ends then.
func (x *session) endInput(orderly bool) {
	var server interface{ CloseWrite() error } = x.server
	if orderly {
		server = socketBelow(x.server)
	}
	_ = server.CloseWrite()
}

// backend is the server's side of a session.
type backend struct {
	handshake.Backend
	server upstream.Primary
	// keyPID and keySecret are the cancel key that the client gets; keyPID is 0 if there is
	// none.
	keyPID    uint32
	keySecret []byte
}
