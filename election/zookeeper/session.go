package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"
)

// endpoint is an ensemble, and who asks it.
type endpoint struct {
	name       string // in errors, with the addresses
	servers    []string
	security   func() *tls.Config // nil without TLS
	serverName string             // in the servers' certificates; "" means the host of the address
	user       string             // of the scheme digest; "" without it
	password   func() string      // as it is at the time
	identified bool               // by the user, or by a client certificate
	remedy     string             // what to do if ZooKeeper denies something
	log        *zap.Logger
	now        func() time.Duration // CLOCK_BOOTTIME
}

// acl is that of the znodes which Fencepost makes.
func (e *endpoint) acl() []zk.ACL {
	if e.identified {
		return zk.AuthACL(zk.PermAll)
	}
	return zk.WorldACL(zk.PermAll)
}

// purpose is what a session is for.
type purpose struct {
	timeout time.Duration // to ask for
	// Whatever is read in a session for watching is watched, and nothing else is. Such a session is over
	// with its first connection: whoever watches reads everything anew then.
	watching bool
}

// session is one ZooKeeper session, with the connection of the library over which it is used. The
// library connects again by itself, unless the session is for watching. When the session has expired, it
// is over for good.
type session struct {
	*endpoint
	purpose
	tag    string // begins the names of its lives; no other session has it
	conn   *zk.Conn
	ended  <-chan zk.Event // closed when the library's goroutines have ended
	ready  chan struct{}   // closed when the server knows the user
	over   chan struct{}   // closed when the session has expired, or is closed
	ctx    context.Context // ends with close
	cancel context.CancelFunc
	wg     sync.WaitGroup // the requests

	login login
	mu    progress
}

// login is what the server was told of the user.
type login struct {
	sync.Mutex
	password string // the last one
}

// progress is how a session is.
type progress struct {
	sync.Mutex
	id        int64 // 0 before the first connection
	granted   time.Duration
	link      *link
	connected bool
	since     time.Duration // when it connected last
	cause     error         // why the last connection was lost, or could not be made
	expired   bool
	mute      bool                // nothing is sent any more
	watched   map[string]struct{} // paths whose next change the server will tell
	changed   chan struct{}       // closed and replaced when a path has changed, or the connection
}

// newSession returns a session that begins as soon as a server can be reached.
func (e *endpoint) newSession(p purpose, tag string) (*session, error) {
	s := &session{endpoint: e, purpose: p, tag: tag, ready: make(chan struct{}), over: make(chan struct{})}
	s.mu.watched, s.mu.changed = map[string]struct{}{}, make(chan struct{})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	conn, ended, err := zk.Connect(e.servers, p.timeout, zk.WithDialer(s.dial), zk.WithHostProvider(&hosts{}),
		zk.WithEventCallback(s.event), zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.conn, s.ended = conn, ended
	s.wg.Go(func() {
		if s.user != "" && !s.introduce() {
			return
		}
		close(s.ready)
	})
	return s, nil
}

// quiet drops what the library logs: it is also in the errors.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// introduce tells the server the user, until it knows. It reports false if the session ended
// first. Afterwards the library tells each server to which it connects.
func (s *session) introduce() bool {
	for !s.isOver() {
		password := s.password()
		if s.conn.AddAuth("digest", []byte(s.user+":"+password)) == nil {
			s.login.Lock()
			defer s.login.Unlock()
			s.login.password = password
			return true
		}
	}
	return false
}

// introduceAgain tells the server the user again if the password is another one now.
func (s *session) introduceAgain() bool {
	s.login.Lock()
	defer s.login.Unlock()
	password := s.password()
	if s.user == "" || password == s.login.password {
		return false
	}
	if s.conn.AddAuth("digest", []byte(s.user+":"+password)) != nil {
		return false // it is told again when something is denied again
	}
	s.login.password = password
	return true
}

// call makes a request, and returns when it is answered or the context ends. In the latter case
// the request may still be carried out; nobody learns of that, so it must be one that does no harm
// then. The library has no contexts.
func call[T any](ctx context.Context, s *session, what string, request func(c *zk.Conn) (T, error)) (answer T, err error) {
	type result struct {
		answer T
		err    error
	}
	unanswered := func() (T, error) {
		var none T
		return none, fmt.Errorf("%s: %s has not answered: %w", what, s.name, ctx.Err())
	}
	if ctx.Err() != nil {
		return unanswered()
	}
	select {
	case <-s.ready:
	case <-s.over:
		return answer, s.failed(what, zk.ErrConnectionClosed)
	case <-ctx.Done():
		return unanswered()
	}
	results := make(chan result, 1)
	s.wg.Go(func() {
		answer, err := request(s.conn)
		if errors.Is(err, zk.ErrNoAuth) && s.introduceAgain() {
			answer, err = request(s.conn)
		}
		results <- result{answer, err}
	})
	select {
	case r := <-results:
		return r.answer, s.failed(what, r.err)
	case <-ctx.Done():
		return unanswered()
	}
}

// event takes what the library tells. It is called from the library's goroutines.
func (s *session) event(e zk.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case e.Type != zk.EventSession:
		delete(s.mu.watched, e.Path)
	case e.State == zk.StateHasSession:
		s.mu.connected, s.mu.since, s.mu.cause = true, s.now(), nil
	case e.State == zk.StateDisconnected, e.State == zk.StateExpired:
		s.mu.connected = false
		if s.watching && s.mu.id != 0 {
			s.expireLocked()
		}
	default:
		return
	}
	s.announceLocked()
}

func (s *session) announceLocked() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// greeted takes the session's id and timeout as a server has told them. It reports false if that
// is another session than before, which would be used as if it were the old one.
func (s *session) greeted(id int64, granted time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case id == 0, s.mu.id != 0 && s.mu.id != id:
		s.expireLocked()
		return id == 0 // the library takes that for the end of the session itself
	case s.mu.id == 0:
		s.mu.id = id
	}
	s.mu.granted = granted
	return true
}

func (s *session) expireLocked() {
	if !s.mu.expired {
		s.mu.expired = true
		close(s.over)
		s.announceLocked()
	}
}

func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.expired
}

// state returns whether there is a connection, since when, and the timeout that was granted. The
// channel is closed when that may have changed.
func (s *session) state() (connected bool, since, granted time.Duration, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.connected && !s.mu.expired, s.mu.since, s.mu.granted, s.mu.changed
}

// watch notes that a path is watched from now on.
func (s *session) watch(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.watched[path] = struct{}{}
}

// unwatch takes back what watch noted.
func (s *session) unwatch(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.watched, path)
}

// watches reports whether the server will tell the next change of a path.
func (s *session) watches(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.mu.watched[path]
	return ok
}

func (s *session) noteCause(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.cause = err
}

func (s *session) cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.cause == nil {
		return errors.New("the connection was lost")
	}
	return s.mu.cause
}

// use notes the present connection. It reports false if there may be none any more.
func (s *session) use(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.link = l
	return !s.mu.expired && !s.mu.mute
}

func (s *session) hungUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.mute
}

// close ends the connection, and waits for what is under way. If orderly is true the session ends
// too, and everything that rests on it; otherwise it expires.
func (s *session) close(orderly bool) {
	s.cancel()
	s.mu.Lock()
	s.mu.mute = !orderly || !s.mu.connected
	if s.mu.link != nil && !s.mu.connected { // the library may wait for an answer
		_ = s.mu.link.Close()
	}
	s.mu.Unlock()
	s.conn.Close()
	s.mu.Lock()
	s.mu.mute = true
	if s.mu.link != nil {
		_ = s.mu.link.Close()
	}
	s.expireLocked()
	s.mu.Unlock()
	for range s.ended { // closed at the end
	}
	s.wg.Wait()
}
