package etcd_test

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/internal/etcdtest"
)

func TestAnEtcdThatIsFull(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t)
	operator := pb.NewMaintenanceClient(cluster.Client(t, "", "").ActiveConnection())
	alarm := func(action pb.AlarmRequest_AlarmAction) func() {
		return func() {
			if _, err := operator.Alarm(within(t, patience), &pb.AlarmRequest{Action: action, MemberID: 1, Alarm: pb.AlarmType_NOSPACE}); err != nil {
				t.Fatalf("%v: %v", action, err)
			}
		}
	}
	electiontest.Full{
		Open: func(proxy string) electiontest.Client {
			return client(t, etcd.Config{Endpoints: cluster.Endpoints(), Proxy: proxy})
		},
		Fill: alarm(pb.AlarmRequest_ACTIVATE), Mend: alarm(pb.AlarmRequest_DEACTIVATE), Remedy: "alarm disarm",
	}.Run(t)
}
