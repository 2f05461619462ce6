package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/faults"
)

// failFast makes a request fail, and say why, when no member can be reached, or when the member
// that it goes to has no leader. The library would wait until the request's context ends,
// and then only say that it did; so would a member that is cut off from its peers.
func failFast(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(clientv3.WithRequireLeader(ctx), method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
}

func failFastStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return stream(clientv3.WithRequireLeader(ctx), desc, cc, method, append(opts, grpc.WaitForReady(false))...)
}

// refusals are what etcd answers if only an operator can help.
var refusals = []error{
	rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrUserNotFound,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrInvalidAuthMgmt, rpctypes.ErrAuthNotEnabled,
}

// limits are what else etcd answers if only an operator can help, and what to do.
var limits = []struct {
	answer error
	remedy string
}{
	{rpctypes.ErrNoSpace, "etcd is full. Compact and defragment it (etcdctl compact, etcdctl defrag), or raise --quota-backend-bytes; " +
		"then run etcdctl alarm disarm. Let etcd compact by itself (--auto-compaction-retention)."},
	{rpctypes.ErrCorrupt, "The members of etcd have different data. Find the corrupt member (etcdctl alarm list, etcdctl endpoint hashkv), " +
		"remove it, and add it again without its data; then run etcdctl alarm disarm."},
	{rpctypes.ErrTooManyRequests, "etcd falls behind with its work. Find out who sends so many requests, and whether its disks are slow."},
}

// failed returns the error of a request, whose library wraps what went wrong in a gRPC status.
func (s *etcdStore) failed(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	over := ctx.Err()
	var login *loginError
	if errors.As(err, &login) {
		what, err, over = "log in as "+login.user, login.cause, nil
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			over = err
		}
	}
	if over != nil {
		return fmt.Errorf("%s: %s has not answered: %w", what, s.name, over)
	}
	answer := rpctypes.Error(err)
	is := func(e error) bool { return errors.Is(answer, e) }
	for _, limit := range limits {
		if is(limit.answer) {
			return denied(what, answer, limit.remedy)
		}
	}
	var etcd rpctypes.EtcdError
	switch {
	case slices.ContainsFunc(refusals, is):
		return denied(what, answer, s.remedy())
	case errors.As(answer, &etcd):
		return fmt.Errorf("%s: %w", what, answer)
	case status.Code(err) == codes.DeadlineExceeded: // gRPC may notice before the context does
		return fmt.Errorf("%s: %s has not answered: %w", what, s.name, context.DeadlineExceeded)
	case status.Code(err) == codes.Unavailable:
		return fmt.Errorf("%s: %w", what, &kv.Unreachable{Service: s.name, Err: errors.New(status.Convert(err).Message())})
	}
	return fmt.Errorf("%s: %w", what, err)
}

func denied(what string, answer error, remedy string) error {
	return &elector.DeniedError{Kind: faults.LeaseDenied, Answer: answer.Error(), Err: fmt.Errorf("%s: %w", what, answer), Remedy: remedy}
}

// remedy says what to do if etcd denies something.
func (s *etcdStore) remedy() string {
	login := "Set the user (election.etcd.user and password or password_file), or a client certificate with its name (cert_file and key_file)"
	if s.login.user != "" {
		login = "Check election.etcd.user and its password (FENCEPOST_ELECTION_ETCD_PASSWORD)"
	}
	return fmt.Sprintf("%s: it needs a role with the permission readwrite on the prefix %s.", login, s.prefix)
}
