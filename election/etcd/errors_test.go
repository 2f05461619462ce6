package etcd_test

import (
	"errors"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

// An etcd that is full can do without everything but what frees a lease.
func TestAnEtcdThatIsFull(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	p := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "one"}).Database("db")
	q := client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: "two"}).Database("db")
	lease := acquire(t, p, bid("a", long))
	operator := pb.NewMaintenanceClient(cluster.Client(t, "", "").ActiveConnection())
	alarm := func(action pb.AlarmRequest_AlarmAction) {
		t.Helper()
		if _, err := operator.Alarm(within(t, patience), &pb.AlarmRequest{Action: action, MemberID: 1, Alarm: pb.AlarmType_NOSPACE}); err != nil {
			t.Fatalf("%v: %v", action, err)
		}
	}
	alarm(pb.AlarmRequest_ACTIVATE)
	if err := p.Renew(within(t, patience), lease); err != nil {
		t.Errorf("the holder renews with %v", err)
	}
	if err := p.Release(within(t, patience), lease, elector.ReasonLeft, 0); err != nil {
		t.Errorf("the holder releases with %v", err)
	}
	_, err := q.Acquire(within(t, patience), bid("b", long))
	var denied *elector.DeniedError
	if !errors.As(err, &denied) || !strings.Contains(denied.Remedy, "alarm disarm") {
		t.Errorf("the next worker gets %v", err)
	}
	alarm(pb.AlarmRequest_DEACTIVATE)
	acquire(t, q, bid("b", long))
}
