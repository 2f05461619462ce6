package etcd

import (
	"context"
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// login is the user and its token, which goes with each request. The library's own login asks
// for a new token before each stream, which is each renewal, and a token costs the server a
// password hash; it also waits for etcd when the client is made.
type login struct {
	user, password string
	turn           chan struct{} // cap 1; held while a token is asked for

	mu    sync.Mutex
	token string
}

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
func (l *login) with(ctx context.Context, authenticate func(user, password string) (token string, err error), request func() error) error {
	old := l.current()
	err := request()
	if l.user == "" || !wantsToken(err) {
		return err
	}
	if err := l.renew(ctx, old, authenticate); err != nil {
		return err
	}
	return request()
}

// renew asks for a new token, unless somebody else has got one since the old one was used.
func (l *login) renew(ctx context.Context, old string, authenticate func(user, password string) (token string, err error)) error {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if l.current() != old {
		return nil
	}
	token, err := authenticate(l.user, l.password)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token = token
	return nil
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
