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

	"go.uber.org/zap"
)

// cancelTarget is where a cancel request of a client's goes.
type cancelTarget struct {
	secret       []byte // ours, as long as the server's
	serverPID    uint32
	serverSecret []byte
}

// cancelKeys gives clients keys of our own, so that the server's secrets stay
// unknown to them, and maps them back.
type cancelKeys struct {
	mu struct {
		sync.Mutex
		targets map[uint32]cancelTarget
	}
}

// add returns a new key for a server's key: the server's process id, which
// drivers show as the backend's and compare with that in notifications, and a
// secret of our own, which is as long as the server's: a client of protocol 3.2
// is given 32 bytes by PostgreSQL 18. Should a session whose backend is gone
// still hold the id, another one stands in for it.
func (k *cancelKeys) add(serverPID uint32, serverSecret []byte) (pid uint32, secret []byte) {
	secret = make([]byte, len(serverSecret))
	_, _ = rand.Read(secret) // never fails
	var b [4]byte
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.targets == nil {
		k.mu.targets = map[uint32]cancelTarget{}
	}
	for pid = serverPID; ; pid = binary.BigEndian.Uint32(b[:]) & 0x7fffffff {
		_, _ = rand.Read(b[:])
		if _, taken := k.mu.targets[pid]; !taken && pid != 0 {
			k.mu.targets[pid] = cancelTarget{secret: secret, serverPID: serverPID, serverSecret: serverSecret}
			return pid, secret
		}
	}
}

func (k *cancelKeys) remove(pid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.mu.targets, pid)
}

// find returns the target of a request, if its key is right.
func (k *cancelKeys) find(r *cancelRequest) (cancelTarget, bool) {
	k.mu.Lock()
	t, ok := k.mu.targets[r.pid]
	k.mu.Unlock()
	return t, ok && subtle.ConstantTimeCompare(t.secret, r.secret) == 1
}

// cancel passes a client's cancel request on. Like Postgres it says nothing,
// whether the key was right or not. It returns when the server has dealt with
// it: the client's connection closes then, as it does against Postgres. A client
// that has gone is not waited for, and neither is a server that does not answer.
func (s *Server) cancel(ctx context.Context, client link, r *cancelRequest) {
	t, ok := s.keys.find(r)
	if !ok {
		return
	}
	ctx, stop := context.WithTimeout(ctx, s.cfg.StartupTimeout)
	defer stop()
	conn, err := s.dial(ctx, s.loops.Pick())
	if err != nil {
		s.cfg.Logger.Warn("cancel request not delivered", zap.Error(err))
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(min(s.cfg.DialTimeout, s.cfg.StartupTimeout)))
	if _, err := conn.Write(wire.AppendCancelRequest(nil, t.serverPID, t.serverSecret)); err != nil {
		return
	}
	there, end := untilGone(ctx, client, 0, errClientGone)
	defer end()
	defer context.AfterFunc(there, func() { _ = conn.SetReadDeadline(aLongTimeAgo) })()
	_, _ = io.Copy(io.Discard, conn)
}
