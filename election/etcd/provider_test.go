package etcd_test

import (
	"crypto/rand"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/etcd"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
)

func TestMain(m *testing.M) {
	process.RaiseParallel()
	pgtest.Main(m, etcdtest.StopShared)
}

// ttl is the TTL of the leases in these tests.
var ttl = stopwatch.TTL(3 * time.Second)

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.Run(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, etcdtest.Shared(t), db)
	})
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, etcdtest.Start(t), db)
	})
}

// service is a cluster with a prefix that is unique to the test.
func service(t *testing.T, cluster *etcdtest.Cluster, db string) *electiontest.Service {
	as := admin{t, cluster.Client(t, "", "")}
	key := db + "/" + db + "/"
	return &electiontest.Service{
		TTL: ttl, Death: ttl + time.Second, Addr: cluster.Addr(), Adopts: true,
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return client(t, etcd.Config{Endpoints: []string{link.Addr()}, Prefix: db, Proxy: proxy}).Database(db)
		},
		// A release writes another state.
		Request:     func(worker string) string { return `{"state":"held","worker":"` + worker + `"` },
		Multiplexed: true,
		Bump:        func(*testing.T) { as.put(db+"/.generation", rand.Text()) },
		Wipe:        func(*testing.T) { as.delete(db+"/", clientv3.WithPrefix()) },
		Backup: func(t *testing.T) func(t *testing.T) {
			backup := cluster.Backup(t)
			return func(t *testing.T) { cluster.Restore(t, backup) }
		},
		Faults: []electiontest.Fault{
			{Name: "the lease is revoked", Do: func(_ *testing.T, resource string) { as.revoke(key + resource + "/.held") }},
			{Name: "the record is deleted", Do: func(_ *testing.T, resource string) { as.delete(key + resource) }},
			{Name: "the record is overwritten by a plain put", Do: func(_ *testing.T, resource string) { as.put(key+resource, "mine") }},
			{Name: "the key of the life is deleted", Do: func(_ *testing.T, resource string) { as.delete(key + resource + "/.held") }},
			{Name: "the key of the life is overwritten by a plain put", Do: func(_ *testing.T, resource string) { as.put(key+resource+"/.held", "mine") }},
			{Name: "everything is deleted", Do: func(_ *testing.T, resource string) { as.delete(key, clientv3.WithPrefix()) }},
		},
	}
}

// admin is an operator, who does what etcdctl does.
type admin struct {
	t      *testing.T
	client *clientv3.Client
}

func (a admin) put(key, value string) {
	a.t.Helper()
	if _, err := a.client.Put(within(a.t, patience), key, value); err != nil {
		a.t.Fatalf("put %s: %v", key, err)
	}
}

func (a admin) delete(key string, opts ...clientv3.OpOption) {
	a.t.Helper()
	if _, err := a.client.Delete(within(a.t, patience), key, opts...); err != nil {
		a.t.Fatalf("delete %s: %v", key, err)
	}
}

// revoke revokes the etcd lease that a key is attached to, if it is.
func (a admin) revoke(key string) {
	a.t.Helper()
	found, err := a.client.Get(within(a.t, patience), key)
	if err != nil {
		a.t.Fatalf("get %s: %v", key, err)
	}
	for _, one := range found.Kvs {
		if one.Lease == 0 {
			continue
		}
		if _, err := a.client.Revoke(within(a.t, patience), clientv3.LeaseID(one.Lease)); err != nil {
			a.t.Fatalf("revoke the lease of %s: %v", key, err)
		}
	}
}

func client(t *testing.T, cfg etcd.Config) *kv.Client {
	t.Helper()
	c, err := open(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open returns a client that is closed when the test ends.
func open(t *testing.T, cfg etcd.Config) (*kv.Client, error) {
	cfg.Logger = zaptest.NewLogger(t).Named(strings.TrimPrefix(cfg.Proxy, cfg.Prefix))
	c, err := etcd.New(cfg)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// What these tests share with those of other providers.
var (
	within     = electiontest.Within
	eventually = electiontest.Eventually
	bid        = electiontest.Bid
	acquire    = electiontest.Acquire
	renew      = electiontest.Renew
)

const (
	patience = electiontest.Patience
	long     = time.Minute // the TTL of leases that do not expire in a test
)
