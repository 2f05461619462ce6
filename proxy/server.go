package proxy

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/fencepost/fencepost/fencing"
	"github.com/fencepost/fencepost/internal/faults"
	"github.com/fencepost/fencepost/proxy/netloop"
	"github.com/fencepost/fencepost/proxy/pgtls"
	"github.com/fencepost/fencepost/proxy/proxyheader"
	"github.com/fencepost/fencepost/proxy/refusals"
	"github.com/fencepost/fencepost/proxy/slots"
	"github.com/fencepost/fencepost/proxy/startup"
	"github.com/fencepost/fencepost/proxy/workers"
)

// maxOverflow bounds the number of clients beyond MaxConnections whose startup packets are
// read at one time. Such a client may want to cancel a statement, and it cannot read a
// refusal while it waits for the answer to its SSLRequest. overflowTimeout bounds how long
// the proxy waits for their startup packets.
const (
	maxOverflow     = 100
	overflowTimeout = time.Second
)

// Server accepts clients and relays each one to Postgres under its fence.
type Server struct {
	cfg      Config
	analyst  analyst
	keys     cancelKeys
	ctx      context.Context // of every connection; Close ends it
	stop     context.CancelFunc
	loops    *netloop.Loops
	workers  *workers.Workers
	audit    *auditQueue
	slots    slots.Slots // one is taken by each client, at most MaxConnections
	overflow slots.Slots // the same for clients beyond MaxConnections
	failing  failures
	refused  *refusals.Log
	waiting  workers.Waiting
	passing  transfers

	mu struct {
		sync.Mutex
		conns    map[netloop.Conn]accepted // of clients that have no session; Close closes them
		sessions map[*session]struct{}
		tenures  map[context.Context]struct{} // those of endWithTenure
		traffic  map[string]*traffic          // of those that were greeted, by their databases
		draining bool
		closed   bool
	}
	wg     sync.WaitGroup // of the connections, each until its session has ended
	checks sync.WaitGroup // of endHanging, verifyRegistrations, endWithTenure and leader groups
}

// accepted is what is known of a client that has no session.
type accepted struct {
	from net.Addr
	at   time.Time
	// console is the startup of a client of the console, which has last sent something at asked; nil for others.
	console  *startup.Request
	lastSent time.Time
}

// failures are those that may concern many clients at once.
type failures struct{ accept, dial, descriptors, answer, fence, header, renamed *faults.Series }

func newFailures(log *zap.Logger) failures {
	return failures{
		accept:      faults.NewSeries(log, "accept failed", 0),
		dial:        faults.NewSeries(log, "postgres not reachable", 0),
		descriptors: faults.NewSeries(log, "no file descriptor left for a connection to postgres", 0),
		answer:      faults.NewSeries(log, "postgres did not answer in time", 0),
		fence:       faults.NewSeries(log, "the tables of the fence did not answer in time", 0),
		header:      faults.NewSeries(log, "trusted load balancer sent no valid PROXY header", 0),
		renamed:     faults.NewSeries(log, "a connection has set an application_name that a route matches, too late for that route", 0),
	}
}

// NewServer checks cfg and returns a server, which Serve starts. Close frees its resources,
// whether or not it was started.
func NewServer(cfg Config) (*Server, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	loops, err := netloop.Start()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Server{
		cfg: cfg, ctx: ctx, stop: stop, loops: loops, workers: workers.New(), audit: newAuditQueue(cfg.Auditors),
		analyst: newAnalyst(), failing: newFailures(cfg.Logger), refused: refusals.NewLog(cfg.Logger, cfg.Metrics.Refused),
	}
	s.slots.Limit(cfg.MaxConnections)
	s.overflow.Limit(maxOverflow)
	s.mu.conns = map[netloop.Conn]accepted{}
	s.mu.sessions = map[*session]struct{}{}
	s.mu.tenures = map[context.Context]struct{}{}
	s.mu.traffic = map[string]*traffic{}
	s.checks.Go(func() { s.endHanging(ctx) })
	s.checks.Go(func() { s.verifyRegistrations(ctx) })
	return s, nil
}

// LimitConnections replaces Config.MaxConnections, for clients that connect from now on.
// Those that are connected stay.
func (s *Server) LimitConnections(most int) { s.slots.Limit(most) }

// Serve accepts connections until ctx ends, then closes ln and returns. It
// does not wait for the sessions: Shutdown and Close do. It may be called for several
// listeners, by a goroutine each.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	backoff := 5 * time.Millisecond
	for {
		conn, err := s.accept(ln)
		switch {
		case err == nil: // also if ctx has ended meanwhile: only a Shutdown refuses it
			backoff = 5 * time.Millisecond
			s.failing.accept.Passed()
			s.begin(conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // mostly too few descriptors: try again when some may be free
			s.failing.accept.Failed(zap.Error(err))
			select {
			case <-time.After(backoff):
			case <-ctx.Done():
			}
			backoff = min(2*backoff, time.Second)
		}
	}
}

// accept waits for a connection and hands it to an event loop.
func (s *Server) accept(ln net.Listener) (netloop.Conn, error) {
	conn, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	adopted, err := s.loops.Pick().Adopt(conn)
	if err != nil {
		if faults.NoDescriptor(err) {
			s.turnAway(conn, nil, refusals.NoDescriptors)
		}
		_ = conn.Close()
		return nil, err
	}
	return s.cfg.TrustedProxies.Expect(adopted), nil
}

// begin starts the goroutine that serves one connection.
func (s *Server) begin(conn netloop.Conn) {
	s.mu.Lock()
	refused := s.mu.draining
	if !refused {
		s.mu.conns[conn] = accepted{from: conn.RemoteAddr(), at: time.Now()}
		s.wg.Add(1)
	}
	s.mu.Unlock()
	if refused {
		s.turnAway(conn, nil, refusals.ShuttingDown)
		_ = conn.Close()
		return
	}
	go func() {
		switch {
		case s.slots.Take():
			if x := s.handle(conn); x != nil {
				x.relay() // which continues without this goroutine, and ends the connection
				return
			}
			s.slots.Give()
		case s.overflow.Take():
			s.handleExcess(conn)
			s.overflow.Give()
		default:
			s.turnAway(conn, nil, refusals.TooManyClients)
		}
		s.end(conn)
	}()
}

// end closes a connection and forgets it.
func (s *Server) end(conn netloop.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	delete(s.mu.conns, conn)
	s.mu.Unlock()
	s.wg.Done()
}

// Shutdown ends each session at its next safe point, where no reply is pending and no
// transaction is open. It returns when all sessions have ended, or with ctx's error. Call it
// after Serve has returned, and call Close after it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.mu.draining = true
	sessions, others := s.openLocked()
	for _, conn := range others {
		_ = conn.SetReadDeadline(aLongTimeAgo)
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

// Clients returns how many clients are connected.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.mu.conns) + len(s.mu.sessions)
}

// openLocked returns the sessions, and the connections of clients that have none yet.
func (s *Server) openLocked() (sessions []*session, others []netloop.Conn) {
	return slices.Collect(maps.Keys(s.mu.sessions)), slices.Collect(maps.Keys(s.mu.conns))
}

// Close ends all sessions. It returns when they have ended and the auditors have received
// every refused statement.
func (s *Server) Close() {
	s.mu.Lock()
	s.mu.draining = true
	sessions, others := s.openLocked()
	for _, conn := range others {
		_ = conn.Close()
	}
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	s.stop()
	for _, x := range sessions {
		x.endAtOnce(refusals.AdminShutdown)
	}
	s.wg.Wait()
	s.checks.Wait()
	if !closed {
		s.audit.close()
		s.workers.Close()
		s.loops.Close()
	}
}

// register adds a session, so that Shutdown, Close and the end of its server's tenure end it.
func (s *Server) register(x *session) (draining bool) {
	s.cfg.Metrics.Sessions(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.conns, socketBelow(x.client))
	s.mu.sessions[x] = struct{}{}
	if s.mu.draining {
		return true
	}
	tenure := x.backend.server.Tenure
	if _, watched := s.mu.tenures[tenure]; !watched {
		s.mu.tenures[tenure] = struct{}{}
		s.checks.Go(func() { s.endWithTenure(tenure) })
	}
	return false
}

func (s *Server) unregister(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.sessions, x)
	s.countEndedLocked(x)
	s.cfg.Metrics.Sessions(-1)
}

// handle serves one connection from its first byte to its last, or to the point where its session has started, which
// it returns.
func (s *Server) handle(conn netloop.Conn) (x *session) {
	accepted := time.Now()
	client, start, cancel, err := s.readRequest(conn, s.cfg.StartupTimeout)
	switch {
	case err != nil:
		s.turnAway(client, start, err)
		linger(client)
	case cancel != nil:
		s.cancel(s.ctx, client, cancel)
	case s.cfg.Console.Is(start.Database):
		s.console(s.ctx, client, start, accepted.Add(s.cfg.StartupTimeout))
	default:
		x = s.startSession(client, start, accepted.Add(s.cfg.StartupTimeout))
	}
	if x == nil {
		_ = client.Close()
	}
	return x
}

// handleExcess serves a connection beyond MaxConnections: it forwards a cancel request, and
// refuses everything else.
func (s *Server) handleExcess(conn netloop.Conn) {
	client, start, cancel, err := s.readRequest(conn, min(overflowTimeout, s.cfg.StartupTimeout))
	defer client.Close()
	switch {
	case cancel != nil:
		s.cancel(s.ctx, client, cancel)
		return
	case err == nil:
		err = refusals.TooManyClients
	}
	s.turnAway(client, start, err)
	linger(client)
}

// turnAway refuses a client that has no session, and counts and logs that. start is nil if it was not read.
func (s *Server) turnAway(client net.Conn, start *startup.Request, err error) {
	s.refused.Refused(err, start.Client(client.RemoteAddr()))
	refusals.Send(client, err)
}

// readRequest reads the PROXY header, if conn must begin with one, and then whether the client
// wants a session or a cancel. client is conn, or TLS on top of it.
func (s *Server) readRequest(conn netloop.Conn, timeout time.Duration) (client link, start *startup.Request, cancel *startup.Cancel, err error) {
	s.mu.Lock()
	draining := s.mu.draining
	if !draining {
		_ = conn.SetDeadline(time.Now().Add(timeout))
	}
	s.mu.Unlock()
	if draining {
		return conn, nil, nil, refusals.ShuttingDown
	}
	r := startup.NewReader(conn, s.cfg.TLS)
	if err = proxyheader.Read(conn); err == nil {
		start, cancel, err = r.Read()
	}
	var late net.Error
	switch {
	case errors.Is(err, pgtls.ErrClientHandshake): // the client expects nothing but TLS, also where it is late
	case errors.As(err, &late) && late.Timeout() && s.isDraining():
		return r.Conn, nil, nil, refusals.ShuttingDown
	case errors.Is(err, proxyheader.ErrInvalid):
		return r.Conn, nil, nil, s.refuseHeader(conn, err)
	case errors.As(err, &late) && late.Timeout():
		return r.Conn, nil, nil, refusals.Protocol("the startup packet did not arrive in time")
	case start != nil && err == nil && start.User == s.cfg.ControlUser:
		err = refusals.Control(start.User)
	case start != nil && err == nil:
		err = r.Admit(start)
	}
	_ = conn.SetDeadline(time.Time{})
	return r.Conn, start, cancel, err
}

// refuseHeader logs that a trusted load balancer sent no valid header, and returns what its
// client gets. The log does not say when that is over: connections with a header and
// others, such as health checks, may alternate.
func (s *Server) refuseHeader(from netloop.Conn, err error) *fencing.Refusal {
	s.failing.header.Failed(zap.Stringer("from", from.RemoteAddr()), zap.Error(err))
	r := refusals.Protocol("%s", fencing.ASCII(err.Error()))
	r.Hint = "The address that connects to Fencepost is in proxy_protocol.trusted of its configuration: " +
		"let the load balancer at that address send the header (send-proxy, proxy_protocol on), or remove the address."
	return r
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.draining
}
