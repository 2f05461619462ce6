package proxy

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"io"
	"sync"
	"time"

	"github.com/fencepost/fencepost/proxy/wire"
	"github.com/fencepost/fencepost/upstream"

	"github.com/fencepost/fencepost/proxy/startup"
	"go.uber.org/zap"
)

// cancelTarget is the cancel key that a client was given, and the server's key that it
// stands for.
type cancelTarget struct {
	secret       []byte   // of the client
	session      *session // that was given the key
	server       upstream.Host
	serverPID    uint32
	serverSecret []byte
}

// cancelKeys gives clients cancel keys with random secrets, so that they never learn the
// server's secrets, and finds the server's key for each.
type cancelKeys struct {
	mu struct {
		sync.Mutex
		targets map[uint32]cancelTarget // by the process id in the client's key
	}
}

// add returns a new key for the client of x, which represents a key of that server. Its process id is
// that of the backend, because drivers show it and compare it with the process id in
// notifications. If a session whose backend has ended still uses that id, a random one
// replaces it. The secret is random, and as long as the server's: PostgreSQL 18 gives a
// client of protocol 3.2 a secret of 32 bytes.
func (k *cancelKeys) add(x *session, server upstream.Host, serverPID uint32, serverSecret []byte) (pid uint32, secret []byte) {
	secret = make([]byte, len(serverSecret))
	_, _ = rand.Read(secret) // never fails
	var b [4]byte
	k.mu.Lock()
	defer k.mu.Unlock()
	for pid = serverPID; ; pid = binary.BigEndian.Uint32(b[:]) & 0x7fffffff {
		_, _ = rand.Read(b[:])
		if _, taken := k.mu.targets[pid]; !taken && pid != 0 {
			k.addLocked(pid, cancelTarget{secret: secret, session: x, server: server, serverPID: serverPID, serverSecret: serverSecret})
			return pid, secret
		}
	}
}

// restore adds the key of a session that another process has passed on, unless its process id is taken.
func (k *cancelKeys) restore(x *session) bool {
	b := &x.backend
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, taken := k.mu.targets[b.keyPID]; taken {
		return false
	}
	k.addLocked(b.keyPID, cancelTarget{secret: b.keySecret, session: x, server: b.server.Host, serverPID: b.PID, serverSecret: b.Secret})
	return true
}

// addLocked adds a key with that process id.
func (k *cancelKeys) addLocked(pid uint32, t cancelTarget) {
	if k.mu.targets == nil {
		k.mu.targets = map[uint32]cancelTarget{}
	}
	k.mu.targets[pid] = t
}

func (k *cancelKeys) remove(pid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.mu.targets, pid)
}

// find returns the target of a request. It reports false if the key is wrong.
func (k *cancelKeys) find(r *startup.Cancel) (cancelTarget, bool) {
	k.mu.Lock()
	t, ok := k.mu.targets[r.PID]
	k.mu.Unlock()
	return t, ok && subtle.ConstantTimeCompare(t.secret, r.Secret) == 1
}

// cancel forwards a client's cancel request to the server, if that has the statement. Like Postgres it sends no answer, whether or
// not the key was right. It returns when the server has processed the request, because
// that is when Postgres closes the client's connection. It stops waiting when the client has
// gone, or when the server does not answer in time.
func (s *Server) cancel(ctx context.Context, client link, r *startup.Cancel) {
	switch t, ok := s.keys.find(r); {
	case ok:
		s.deliver(ctx, client, t)
	case s.cfg.CancelElsewhere != nil:
		s.cfg.CancelElsewhere(ctx, r.PID, r.Secret)
	}
}

// Cancel does what a cancel request with that key does, which has reached another process. It returns when the server has processed
// it, or does not answer in time.
func (s *Server) Cancel(ctx context.Context, pid uint32, secret []byte) {
	if t, ok := s.keys.find(&startup.Cancel{PID: pid, Secret: secret}); ok {
		s.deliver(ctx, nil, t)
	}
}

// deliver sends a cancel request to the server, if that has the statement. client is nil if it is not connected to this process.
func (s *Server) deliver(ctx context.Context, client link, t cancelTarget) {
	if !t.session.cancelWait() {
		return
	}
	ctx, stop := context.WithTimeout(ctx, s.cfg.StartupTimeout)
	defer stop()
	conn, err := s.dial(ctx, t.server, s.loops.Pick())
	if err != nil {
		s.cfg.Logger.Warn("cancel request not delivered", zap.Error(err))
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(min(s.cfg.DialTimeout, s.cfg.StartupTimeout)))
	if _, err := conn.Write(wire.AppendCancelRequest(nil, t.serverPID, t.serverSecret)); err != nil {
		return
	}
	there := ctx
	if client != nil {
		var end func()
		there, end = untilGone(ctx, client, 0, errClientGone)
		defer end()
	}
	defer context.AfterFunc(there, func() { _ = conn.SetReadDeadline(aLongTimeAgo) })()
	_, _ = io.Copy(io.Discard, conn)
}
