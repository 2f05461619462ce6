package etcd

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// guarded is a service that accepts requests with the token "good" only.
func guarded(l *login) error {
	if l.current() != "good" {
		return rpctypes.ErrInvalidAuthToken
	}
	return nil
}

func request(t *testing.T, l *login) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return l.with(ctx, func() error { return guarded(l) })
}

// etcd is so busy that a login takes longer than any request may.
func TestASlowLoginIsMadeOnceAndSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		l := &login{user: "u", password: func() string { return "p" }, ctx: t.Context(), ask: func(ctx context.Context, _, _ string) (string, error) {
			asked.Add(1)
			select {
			case <-time.After(7500 * time.Millisecond):
				return "good", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}}
		began := time.Now()
		for err := request(t, l); err != nil; err = request(t, l) {
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "log in as u") {
				t.Errorf("a request that waits for the login ended with %v", err)
			}
			if time.Since(began) > time.Minute {
				t.Fatal("no request succeeds")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took != 7500*time.Millisecond || asked.Load() != 1 {
			t.Errorf("%d logins took %v", asked.Load(), took)
		}
		l.wg.Wait()
	})
}

func TestLoginsThatFailAreNotRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		right := false
		l := &login{user: "u", password: func() string { return "p" }, ctx: t.Context(), ask: func(context.Context, string, string) (string, error) {
			asked.Add(1)
			if right {
				return "good", nil
			}
			return "", rpctypes.ErrAuthFailed
		}}
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(10 * time.Millisecond) {
			if err := request(t, l); !errors.Is(err, rpctypes.ErrAuthFailed) || !strings.Contains(err.Error(), "log in as u") {
				t.Fatalf("with a wrong password a request ended with %v", err)
			}
		}
		if n := asked.Load(); n < 10 || n > 20 {
			t.Errorf("%d logins in a minute", n)
		}
		right = true
		time.Sleep(mostLoginPause)
		if err := request(t, l); err != nil {
			t.Errorf("when the password is right again, a request ended with %v", err)
		}
		l.wg.Wait()
	})
}
