package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
)

// etcdStore is the kv.Store of one etcd cluster. Its lives are etcd's leases.
type etcdStore struct {
	client *clientv3.Client
	login  login
	prefix string             // of all keys, with the slash at its end
	name   string             // of the service in errors
	cancel context.CancelFunc // ends a login that is under way
}

var _ kv.Store = (*etcdStore)(nil)

// do makes a request, and returns its error as failed does. If a member answers that it has no
// leader, it has done nothing, and the request goes to the next member.
func (s *etcdStore) do(ctx context.Context, what string, request func() error) (err error) {
	for range s.client.Endpoints() {
		if err = s.login.with(ctx, request); !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
			break
		}
	}
	return s.failed(ctx, what, err)
}

// authenticate asks for a token.
func (s *etcdStore) authenticate(ctx context.Context, user, password string) (token string, err error) {
	answer, err := s.client.Authenticate(ctx, user, password)
	if err != nil {
		return "", err
	}
	return answer.Token, nil
}

// txn runs a transaction, which reads what a quorum has.
func (s *etcdStore) txn(ctx context.Context, what string, ifs []clientv3.Cmp, thens ...clientv3.Op) (*clientv3.TxnResponse, error) {
	var answer *clientv3.TxnResponse
	err := s.do(ctx, what, func() (err error) {
		answer, err = s.client.Txn(ctx).If(ifs...).Then(thens...).Commit()
		return err
	})
	return answer, err
}

// Read implements kv.Store.
func (s *etcdStore) Read(ctx context.Context, key string) (kv.Entry, error) {
	k := s.keys(key)
	answer, err := s.txn(ctx, "read "+k.record, nil, clientv3.OpGet(k.record), clientv3.OpGet(k.held), clientv3.OpGet(s.marker()))
	if err != nil {
		return kv.Entry{}, err
	}
	found := values{}
	for _, r := range answer.Responses {
		for _, one := range r.GetResponseRange().GetKvs() {
			found[string(one.Key)] = one
		}
	}
	e := found.entry(k)
	e.Marker = found.text(s.marker())
	return e, nil
}

// Swap implements kv.Store. etcd refuses a put with a lease that it does not know, and then the
// whole transaction.
func (s *etcdStore) Swap(ctx context.Context, key string, old kv.Entry, record []byte, life string) (version int64, err error) {
	k := s.keys(key)
	ifs := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(k.record), "=", old.Version)} // 0 if there is none
	hold := clientv3.OpDelete(k.held)
	if life != "" {
		id, err := leaseID(life)
		if err != nil {
			return 0, err
		}
		ifs = append(ifs, clientv3.Compare(clientv3.Value(s.marker()), "=", old.Marker))
		hold = clientv3.OpPut(k.held, life, clientv3.WithLease(id))
	}
	answer, err := s.txn(ctx, "write "+k.record, ifs, clientv3.OpPut(k.record, string(record)), hold)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return 0, fmt.Errorf("%w: etcd no longer knows its lease", elector.ErrLost)
	case err != nil:
		return 0, err
	case !answer.Succeeded:
		return 0, kv.ErrConflict
	}
	return answer.Header.Revision, nil
}

// Begin implements kv.Store. etcd takes whole seconds.
func (s *etcdStore) Begin(ctx context.Context, ttl time.Duration) (kv.Life, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	var answer *clientv3.LeaseGrantResponse
	err := s.do(ctx, "create a lease", func() (err error) {
		answer, err = s.client.Grant(ctx, seconds)
		return err
	})
	if err != nil {
		return kv.Life{}, err
	}
	life := kv.Life{ID: strconv.FormatInt(int64(answer.ID), 16), TTL: time.Duration(answer.TTL) * time.Second}
	return life, nil
}

// Beat implements kv.Store. An etcd lease that is kept alive proves nothing about the key, which
// may have been taken from it. One that were kept alive and not confirmed would serve no one, so it is read first.
func (s *etcdStore) Beat(ctx context.Context, key, life string) error {
	id, err := leaseID(life)
	if err != nil {
		return err
	}
	err = repeat(ctx, func(ctx context.Context) error {
		entry, err := s.Read(ctx, key)
		if err == nil && entry.Life != life {
			err = fmt.Errorf("%w: its lease has expired, or somebody has deleted or written its record", elector.ErrLost)
		}
		return err
	})
	if err != nil {
		return err
	}
	return repeat(ctx, func(ctx context.Context) error { return s.keepAlive(ctx, id) })
}

// repeat sends a request up to tries times, while no member answers. Each is given up after its part of the time that
// is left, and goes to the next member.
func repeat(ctx context.Context, request func(ctx context.Context) error) (err error) {
	for left := tries; left > 0; left-- {
		part, cancel := context.WithCancel(ctx)
		if end, ok := ctx.Deadline(); ok {
			part, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
		}
		err = request(part)
		cancel()
		var network net.Error // a deadline is one too
		if !errors.As(err, &network) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// keepAlive extends an etcd lease. The library's KeepAliveOnce asks again without a pause while no
// member can be reached.
func (s *etcdStore) keepAlive(ctx context.Context, id clientv3.LeaseID) error {
	ctx, cancel := context.WithCancel(ctx) // ends the stream
	defer cancel()
	var left int64
	err := s.do(ctx, "keep a lease alive", func() error {
		stream, err := pb.NewLeaseClient(s.client.ActiveConnection()).LeaseKeepAlive(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
			return err
		}
		answer, err := stream.Recv()
		if err == nil {
			left = answer.TTL
		}
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) || err == nil && left <= 0 {
		return fmt.Errorf("%w: etcd no longer knows its lease", elector.ErrLost)
	}
	return err
}

// End implements kv.Store.
func (s *etcdStore) End(ctx context.Context, life string) error {
	id, err := leaseID(life)
	if err != nil {
		return err
	}
	err = s.do(ctx, "revoke a lease", func() error {
		_, err := s.client.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

// Mark implements kv.Store.
func (s *etcdStore) Mark(ctx context.Context, marker string, replace bool) error {
	var ifs []clientv3.Cmp
	if !replace {
		ifs = append(ifs, clientv3.Compare(clientv3.CreateRevision(s.marker()), "=", 0))
	}
	_, err := s.txn(ctx, "write "+s.marker(), ifs, clientv3.OpPut(s.marker(), marker))
	return err
}

// Position implements kv.Store.
func (s *etcdStore) Position(ctx context.Context) (marker string, version int64, err error) {
	answer, err := s.txn(ctx, "read "+s.marker(), nil, clientv3.OpGet(s.marker()))
	if err != nil {
		return "", 0, err
	}
	for _, one := range answer.Responses[0].GetResponseRange().GetKvs() {
		marker = string(one.Value)
	}
	return marker, answer.Header.Revision, nil
}

// Watch implements kv.Store. A member without a leader ends it.
func (s *etcdStore) Watch(ctx context.Context, see func(kv.Snapshot)) error {
	what := "watch " + s.prefix
	var all *clientv3.GetResponse
	err := s.do(ctx, what, func() (err error) {
		all, err = s.client.Get(ctx, s.prefix, clientv3.WithPrefix())
		return err
	})
	if err != nil {
		return err
	}
	found := values{}
	for _, one := range all.Kvs {
		found[string(one.Key)] = one
	}
	see(s.snapshot(found))
	changes := s.client.Watch(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithRev(all.Header.Revision+1))
	for change := range changes {
		if err := change.Err(); err != nil {
			return s.failed(ctx, what, err)
		}
		if len(change.Events) == 0 {
			continue
		}
		found.apply(change.Events)
		see(s.snapshot(found))
	}
	return ctx.Err()
}

// Close implements kv.Store.
func (s *etcdStore) Close() error {
	s.cancel()
	s.login.wg.Wait()
	if err := s.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close the connection to %s: %w", s.name, err)
	}
	return nil
}

func leaseID(life string) (clientv3.LeaseID, error) {
	id, err := strconv.ParseInt(life, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not the id of an etcd lease", life)
	}
	return clientv3.LeaseID(id), nil
}
