package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// loginTimeout bounds a login. It costs etcd a password hash, which it cannot give up, and
	// which takes seconds if it is busy.
	loginTimeout = 30 * time.Second
	// The pause after a login that has failed doubles up to the longest one.
	leastLoginPause = 500 * time.Millisecond
	mostLoginPause  = 5 * time.Second
)

// login is the user and its token, which goes with each request. The library's own login asks
// for a new token before each stream, which is each renewal, and a token costs the server a
// password hash; it also waits for etcd when the client is made.
//
// One login at a time runs in the background. All requests that need a new token wait for it, and
// it continues when they are given up.
type login struct {
	user     string
	password func() string // as it is at the time
	ask      func(ctx context.Context, user, password string) (token string, err error)
	ctx      context.Context // of logins
	wg       sync.WaitGroup

	mu    sync.Mutex
	token string
	last  *attempt // under way, or failed; nil after one that succeeded
}

// attempt is one login.
type attempt struct {
	ended chan struct{}
	// The rest is set before ended is closed.
	err   error
	next  time.Time     // not before this is another one made
	pause time.Duration // until then
}

// loginError means that a request was not made, because it needs a login.
type loginError struct {
	user  string
	cause error
}

func (e *loginError) Error() string { return fmt.Sprintf("log in as %s: %v", e.user, e.cause) }
func (e *loginError) Unwrap() error { return e.cause }

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (l *login) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	if token := l.current(); token != "" {
		return map[string]string{rpctypes.TokenFieldNameGRPC: token}, nil
	}
	return nil, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Without TLS the password
// goes over the network too; that is the operator's decision.
func (l *login) RequireTransportSecurity() bool { return false }

func (l *login) current() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// with makes a request, and makes it again with a new token if etcd has refused the old one,
// which it does before anything else.
func (l *login) with(ctx context.Context, request func() error) error {
	old := l.current()
	err := request()
	if l.user == "" || !wantsToken(err) {
		return err
	}
	if err := l.renew(ctx, old); err != nil {
		return &loginError{l.user, err}
	}
	return request()
}

// renew waits for a new token, unless someone has got one since the old one was used.
func (l *login) renew(ctx context.Context, old string) error {
	a := l.attempt(old)
	if a == nil {
		return nil
	}
	select {
	case <-a.ended:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempt returns the login that is under way, or has failed not long ago. Otherwise it begins
// one. It returns nil if the token is no longer the old one.
func (l *login) attempt(old string) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token != old {
		return nil
	}
	pause := leastLoginPause
	if a := l.last; a != nil {
		select {
		case <-a.ended:
			if time.Now().Before(a.next) {
				return a
			}
			pause = min(2*a.pause, mostLoginPause)
		default:
			return a
		}
	}
	a := &attempt{ended: make(chan struct{}), pause: pause}
	l.last = a
	l.wg.Go(func() { l.run(a) })
	return a
}

// run logs in.
func (l *login) run(a *attempt) {
	ctx, cancel := context.WithTimeout(l.ctx, loginTimeout)
	defer cancel()
	token, err := l.ask(ctx, l.user, l.password())
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.token, l.last = token, nil
	}
	a.err, a.next = err, time.Now().Add(a.pause)
	close(a.ended)
}

// wantsToken reports whether etcd has refused a request for its token, or because it had none.
func wantsToken(err error) bool {
	for _, refusal := range []error{rpctypes.ErrUserEmpty, rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision} {
		if errors.Is(rpctypes.Error(err), refusal) {
			return true
		}
	}
	return false
}
