package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	// sessionTimeout is that of every session. Nothing rests on a session: the library leaves a server that has
	// not answered for two thirds of it.
	sessionTimeout = 4 * time.Second
	// answerWithin bounds the connection to a server, and then its first answer.
	answerWithin = 2 * time.Second
	// replaceAfter is when a connection without a session is replaced. The library sends a server the last zxid that it
	// has seen, and an ensemble that was restored to an older state does not let it in.
	replaceAfter = 5 * time.Second
	// mostAnswer bounds an answer, in bytes. The library would allocate whatever a length asks for.
	mostAnswer = 16 << 20
)

// endpoint is an ensemble, and who asks it.
type endpoint struct {
	name       string // in errors, with the addresses
	servers    []string
	security   func() *tls.Config // nil without TLS
	user       string             // of the scheme digest; "" without it
	password   func() string      // as it is at the time
	identified bool               // by the user, or by a client certificate
	remedy     string             // what to do if ZooKeeper denies something
}

// acl is that of the znodes which Fencepost makes.
func (e *endpoint) acl() []zk.ACL {
	if e.identified {
		return zk.AuthACL(zk.PermAll)
	}
	return zk.WorldACL(zk.PermAll)
}

// connection is one of the library's. It connects again by itself, unless it is for watching: whoever watches
// reads everything again then.
type connection struct {
	*endpoint
	watching bool
	conn     *zk.Conn
	ended    <-chan zk.Event // closed when the library's goroutines have ended
	ctx      context.Context // ends with close
	cancel   context.CancelFunc
	wg       sync.WaitGroup // the requests

	login    sync.Mutex
	password string // that was sent to the servers; "" before that

	mu struct {
		sync.Mutex
		link    net.Conn
		lost    time.Time           // since when there is no session; zero while there is one
		cause   error               // why the last connection was lost, or could not be made
		over    bool                // it cannot be used any more
		watched map[string]struct{} // paths whose next change the server will report
		changed chan struct{}       // closed and replaced when a path has changed, or the session
	}
}

// connect returns a connection that begins as soon as a server can be reached.
func (e *endpoint) connect(watching bool) (*connection, error) {
	c := &connection{endpoint: e, watching: watching}
	c.mu.lost, c.mu.watched, c.mu.changed = time.Now(), map[string]struct{}{}, make(chan struct{})
	c.ctx, c.cancel = context.WithCancel(context.Background())
	var err error
	c.conn, c.ended, err = zk.Connect(e.servers, sessionTimeout, zk.WithDialer(c.dial), zk.WithHostProvider(&hosts{}),
		zk.WithEventCallback(c.event), zk.WithMaxBufferSize(mostAnswer), zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		c.cancel()
		return nil, err
	}
	return c, nil
}

// quiet drops what the library logs: it is also in the errors.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// hosts says which server to connect to next. Names are looked up for each connection, and not once, as the
// library's own does. After each server was tried, there is a pause.
type hosts struct {
	servers []string
	next    int
	tried   int // since the last connection
}

// Init implements zk.HostProvider. The library has mixed the servers.
func (h *hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (h *hosts) Len() int { return len(h.servers) }

// Next implements zk.HostProvider. pause makes the library wait for a second, and fail the requests
// that it has not sent.
func (h *hosts) Next() (server string, pause bool) {
	if pause = h.tried == len(h.servers); pause {
		h.tried = 0
	}
	h.tried++
	h.next = (h.next + 1) % len(h.servers)
	return h.servers[h.next], pause
}

// Connected implements zk.HostProvider.
func (h *hosts) Connected() { h.tried = 0 }

// dial connects to a server. The library calls it when it has no connection.
func (c *connection) dial(network, address string, _ time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, answerWithin)
	defer cancel()
	conn, err := c.open(ctx, network, address)
	if err != nil {
		c.noteCause(err)
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.over || c.ctx.Err() != nil {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	c.mu.link = &link{Conn: conn, c: c}
	return c.mu.link, nil
}

func (c *connection) open(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil || c.security == nil {
		return conn, err
	}
	config := c.security().Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(address) // it was dialled
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", address, err), conn.Close())
	}
	return secure, nil
}

// link is a connection to a server. It notes why it ends.
type link struct {
	net.Conn
	c       *connection
	greeted bool // the server has answered
}

// Read implements net.Conn.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if err != nil {
		l.c.noteCause(l.cause(err))
	}
	l.greeted = l.greeted || n > 0
	return n, err
}

// SetReadDeadline implements net.Conn. The library would wait for the first answer for seven session timeouts.
func (l *link) SetReadDeadline(t time.Time) error {
	if most := time.Now().Add(answerWithin); !l.greeted && t.After(most) {
		t = most
	}
	return l.Conn.SetReadDeadline(t)
}

// cause says why a connection has ended.
func (l *link) cause(err error) error {
	server := l.RemoteAddr()
	switch timeout := (net.Error)(nil); {
	case !l.greeted && errors.Is(err, io.EOF):
		return fmt.Errorf("%s has hung up: it does not serve clients now (has it a quorum?), or it expects TLS: %w", server, err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer: %w", server, err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s has closed the connection: %w", server, err)
	}
	return err
}

func (c *connection) noteCause(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.cause = err
}

func (c *connection) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.cause == nil {
		return errors.New("the connection was lost")
	}
	return c.mu.cause
}

// event takes an event of the library. It is called from the library's goroutines.
func (c *connection) event(e zk.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.Type != zk.EventSession:
		delete(c.mu.watched, e.Path)
	case e.State == zk.StateHasSession:
		c.mu.lost, c.mu.cause = time.Time{}, nil
	case e.State == zk.StateDisconnected && c.mu.lost.IsZero():
		c.mu.lost, c.mu.over = time.Now(), c.watching
	default:
		return
	}
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// changes returns a channel that is closed at the next change of a path that is watched, or of the session.
func (c *connection) changes() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.changed
}

// watch notes that a path is watched from now on, or no longer.
func (c *connection) watch(path string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.mu.watched, path); on {
		c.mu.watched[path] = struct{}{}
	}
}

// watches reports whether the server will report the next change of a path.
func (c *connection) watches(path string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.mu.watched[path]
	return ok
}

// isOver reports whether the connection cannot be used any more.
func (c *connection) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.over || !c.mu.lost.IsZero() && time.Since(c.mu.lost) > replaceAfter
}

// introduce sends the user to the servers, once. The library sends it to each server that it connects to later.
func (c *connection) introduce() error {
	c.login.Lock()
	defer c.login.Unlock()
	if c.user == "" || c.password != "" {
		return nil
	}
	password := c.endpoint.password()
	err := c.conn.AddAuth("digest", []byte(c.user+":"+password))
	if err == nil {
		c.password = password
	}
	return err
}

// denied notes that the server has denied something. If the password is another one by now, the connection is
// of no use any more.
func (c *connection) denied() {
	c.login.Lock()
	defer c.login.Unlock()
	if c.user != "" && c.password != c.endpoint.password() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.mu.over = true
	}
}

// call makes a request, and returns when it is answered or the context ends. In the latter case
// the request may still be carried out. The library has no contexts.
func call[T any](ctx context.Context, c *connection, what string, request func(c *zk.Conn) (T, error)) (answer T, err error) {
	type result struct {
		answer T
		err    error
	}
	results := make(chan result, 1)
	c.wg.Go(func() {
		var r result
		if r.err = c.introduce(); r.err == nil {
			r.answer, r.err = request(c.conn)
		}
		results <- r
	})
	select {
	case r := <-results:
		return r.answer, c.failed(what, r.err)
	case <-ctx.Done():
		return answer, fmt.Errorf("%s: %s has not answered: %w", what, c.name, ctx.Err())
	}
}

// close ends the connection, and waits for what is under way.
func (c *connection) close() {
	c.cancel()
	c.conn.Close()
	c.mu.Lock()
	c.mu.over = true
	if c.mu.link != nil {
		_ = c.mu.link.Close()
	}
	c.mu.Unlock()
	for range c.ended { // closed at the end
	}
	c.wg.Wait()
}
