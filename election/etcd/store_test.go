package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	s, err := open(Config{Endpoints: etcdtest.Shared(t).Endpoints(), Prefix: "swap-" + rand.Text()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	electiontest.RunStore(t, s)
}

// A member that has no leader has done nothing. Each other member is asked then, once.
func TestARequestGoesToAMemberWithALeader(t *testing.T) {
	t.Parallel()
	s, err := open(Config{Endpoints: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		leaderless, asked int
		answer            error
	}{{0, 1, nil}, {2, 3, nil}, {3, 3, rpctypes.ErrNoLeader}} {
		asked := 0
		err := s.do(t.Context(), "read", func() error {
			if asked++; asked <= c.leaderless {
				return rpctypes.ErrGRPCNoLeader
			}
			return nil
		})
		if asked != c.asked || !errors.Is(err, c.answer) {
			t.Errorf("with %d members without a leader, %d are asked, and the answer is %v; want %d, %v", c.leaderless, asked, err, c.asked, c.answer)
		}
	}
}

// TestADeadlineThatGRPCNoticesFirst: a request that has ended at its deadline was not answered, although its context continues.
func TestADeadlineThatGRPCNoticesFirst(t *testing.T) {
	t.Parallel()
	s := &etcdStore{name: "etcd at test"}
	err := s.failed(t.Context(), "renew", status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "etcd at test has not answered") {
		t.Errorf("the error is %v", err)
	}
}
