package proxy

import (
	"context"
	"errors"
	"net"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/fencing/sqltext"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
)

// maxOverflow bounds the clients that are heard out at once when there are
// MaxConnections: one may want to cancel a statement, and to understand why it
// is refused a client must have been asked for nothing it waits for.
// overflowTimeout bounds how long.
const (
	maxOverflow     = 100
	overflowTimeout = time.Second
)

// cacheBytes bounds the cache of analysed texts, shared by all sessions.
const cacheBytes = 32 << 20

// Server accepts clients and relays them to Postgres, fenced.
type Server struct {
	cfg   Config
	cache *sqltext.Cache
	// analyze analyzes a text too long for the machine; it may take a while.
	analyze  func(sql string, s sqltext.Settings) *sqltext.Text
	parsing  *fairQueue // of those who have a long text analyzed
	keys     cancelKeys
	ctx      context.Context // of every connection; Close ends it
	stop     context.CancelFunc
	loops    *netloop.Loops
	crews    *crews
	audit    *auditQueue
	slots    chan struct{} // of MaxConnections
	overflow chan struct{} // of clients beyond them

	mu struct {
		sync.Mutex
		conns    map[netloop.Conn]struct{} // of clients, to be closed by Close
		sessions map[*session]struct{}
		draining bool
		closed   bool
	}
	wg sync.WaitGroup
}

// NewServer checks cfg and returns a server that Serve starts. Close frees what
// it has.
func NewServer(cfg Config) (*Server, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	loops, err := netloop.Start()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, ctx: ctx, stop: stop, loops: loops, crews: newCrews(), audit: newAuditQueue(cfg.Auditors), cache: sqltext.NewCache(cacheBytes), slots: make(chan struct{}, cfg.MaxConnections), overflow: make(chan struct{}, maxOverflow)}
	s.analyze, s.parsing = s.cache.Analyze, newFairQueue(max(1, runtime.GOMAXPROCS(0)/2))
	s.mu.conns = map[netloop.Conn]struct{}{}
	s.mu.sessions = map[*session]struct{}{}
	return s, nil
}

// Serve accepts connections until ctx ends, then closes ln and returns. It
// does not wait for the sessions: Shutdown and Close do.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	backoff := 5 * time.Millisecond
	for {
		conn, err := s.accept(ln)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil: // out of descriptors, mostly: go on when some are free
			s.cfg.Logger.Warn("accept failed", zap.Error(err))
			select {
			case <-time.After(backoff):
			case <-ctx.Done():
			}
			backoff = min(2*backoff, time.Second)
			continue
		}
		backoff = 5 * time.Millisecond
		s.begin(conn)
	}
}

func (s *Server) accept(ln net.Listener) (netloop.Conn, error) {
	conn, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	return s.loops.Pick().Adopt(conn)
}

// begin starts the goroutine of one connection.
func (s *Server) begin(conn netloop.Conn) {
	ctx := s.ctx
	s.mu.Lock()
	refused := s.mu.draining
	if !refused {
		s.mu.conns[conn] = struct{}{}
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if refused {
		refuse(conn, shuttingDown)
		_ = conn.Close()
		return
	}
	go func() {
		defer s.wg.Done()
		defer s.end(conn)
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
			s.handle(ctx, conn)
			return
		default:
		}
		select {
		case s.overflow <- struct{}{}:
			defer func() { <-s.overflow }()
			s.handleExcess(ctx, conn)
		default:
			refuse(conn, tooManyClients)
		}
	}()
}

func (s *Server) end(conn netloop.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, conn)
}

var (
	shuttingDown   = &fencing.Refusal{SQLState: "57P03", Message: "the database system is shutting down"}
	tooManyClients = &fencing.Refusal{
		SQLState: "53300", Message: "sorry, too many clients already",
		Hint: "Raise max_connections in Fencepost's configuration.",
	}
	adminShutdown = &fencing.Refusal{SQLState: "57P01", Message: "terminating connection due to administrator command"}
)

// Shutdown ends each session at its next safe point: nothing owed, no
// transaction open. It returns when all have ended, or with ctx's error. Call
// it when Serve has returned, and Close after it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.mu.draining = true
	begun := map[netloop.Conn]bool{}
	sessions := make([]*session, 0, len(s.mu.sessions))
	for x := range s.mu.sessions {
		sessions = append(sessions, x)
		begun[socketBelow(x.client)] = true
	}
	for conn := range s.mu.conns {
		if !begun[conn] {
			_ = conn.SetReadDeadline(aLongTimeAgo)
		}
	}
	s.mu.Unlock()
	for _, x := range sessions {
		x.drain()
	}
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close ends what is left and returns when it has ended, and when the auditors were told
// of every refused statement.
func (s *Server) Close() {
	s.mu.Lock()
	s.mu.draining = true
	for conn := range s.mu.conns {
		_ = conn.Close()
	}
	sessions := make([]*session, 0, len(s.mu.sessions))
	for x := range s.mu.sessions {
		sessions = append(sessions, x)
	}
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	s.stop()
	for _, x := range sessions {
		x.abort()
	}
	s.wg.Wait()
	if !closed {
		s.audit.close()
		s.crews.close()
		s.loops.Close()
	}
}

func (s *Server) register(x *session) (draining bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.sessions[x] = struct{}{}
	return s.mu.draining
}

func (s *Server) unregister(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.sessions, x)
}

// handle is one connection's story from its first byte to its last.
func (s *Server) handle(ctx context.Context, conn netloop.Conn) {
	until := time.Now().Add(s.cfg.StartupTimeout)
	client, start, cancel, err := s.hear(conn, s.cfg.StartupTimeout)
	defer client.Close()
	switch {
	case err != nil:
		refuse(client, err)
		linger(client)
	case cancel != nil:
		s.cancel(ctx, client, cancel)
	default:
		s.session(ctx, client, start, until)
	}
}

// handleExcess is the story of a connection for which there is no room.
func (s *Server) handleExcess(ctx context.Context, conn netloop.Conn) {
	client, _, cancel, err := s.hear(conn, min(overflowTimeout, s.cfg.StartupTimeout))
	defer client.Close()
	switch {
	case cancel != nil:
		s.cancel(ctx, client, cancel)
		return
	case err == nil:
		err = tooManyClients
	}
	refuse(client, err)
	linger(client)
}

// hear reads what the client wants. client is conn, or TLS over it.
func (s *Server) hear(conn netloop.Conn, timeout time.Duration) (client link, start *startup, cancel *cancelRequest, err error) {
	s.mu.Lock()
	draining := s.mu.draining
	if !draining {
		_ = conn.SetDeadline(time.Now().Add(timeout))
	}
	s.mu.Unlock()
	if draining {
		return conn, nil, nil, shuttingDown
	}
	r := startupReader{tls: s.cfg.TLS, conn: conn}
	start, cancel, err = r.read()
	var late net.Error
	switch {
	case errors.Is(err, pgtls.ErrClientHandshake):
		s.cfg.Logger.Info("client refused", zap.Stringer("client", conn.RemoteAddr()), zap.Error(err))
	case errors.As(err, &late) && late.Timeout() && s.isDraining():
		return r.conn, nil, nil, shuttingDown
	case errors.As(err, &late) && late.Timeout():
		return r.conn, nil, nil, protocolError("the startup packet did not arrive in time")
	case start != nil && err == nil:
		err = s.admit(r.conn, start)
	}
	_ = conn.SetDeadline(time.Time{})
	return r.conn, start, cancel, err
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.draining
}
