package zookeeper_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap/zaptest"

	"github.com/fencepost/fencepost/election/electiontest"
	"github.com/fencepost/fencepost/election/elector"
	"github.com/fencepost/fencepost/election/kv"
	"github.com/fencepost/fencepost/election/zookeeper"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/stopwatch"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

func TestMain(m *testing.M) {
	process.RaiseParallel()
	pgtest.Main(m, zookeepertest.StopShared)
}

// ttl is the TTL of the leases in these tests.
var ttl = stopwatch.TTL(4 * time.Second)

func TestConformance(t *testing.T) {
	t.Parallel()
	electiontest.Run(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, zookeepertest.Shared(t), db)
	})
}

func TestRestores(t *testing.T) {
	t.Parallel()
	electiontest.RunRestores(t, func(t *testing.T, _ *pgtest.Server, db string) *electiontest.Service {
		return service(t, zookeepertest.Start(t), db)
	})
}

// service is an ensemble with a prefix that is unique to the test.
func service(t *testing.T, ensemble *zookeepertest.Ensemble, db string) *electiontest.Service {
	as := admin{t, ensemble.Client(t, "", "")}
	root := "/" + db
	record := func(resource string) string { return root + "/" + db + "/" + resource }
	return &electiontest.Service{
		TTL: ttl, Death: ttl + 2*time.Second, Addr: ensemble.Addr(),
		Provider: func(t *testing.T, proxy string, link *electiontest.Link) elector.Provider {
			return client(t, zookeeper.Config{Servers: []string{link.Addr()}, Prefix: db, Proxy: proxy}).Database(db)
		},
		// A release writes another state. A server closes the earlier connection of a session that
		// connects again; a request over another server is TestAnEnsemble's.
		Request:     func(worker string) string { return `{"state":"held","worker":"` + worker + `"` },
		Multiplexed: true, Supersedes: true,
		Bump: func(t *testing.T) {
			if _, err := client(t, zookeeper.Config{Servers: []string{ensemble.Addr()}, Prefix: db, Proxy: "operator " + rand.Text()}).BumpGeneration(within(t, patience)); err != nil {
				t.Fatal(err)
			}
		},
		Wipe: func(*testing.T) { as.deleteAll(root) },
		Backup: func(t *testing.T) func(t *testing.T) {
			backup := ensemble.Backup(t)
			return func(t *testing.T) { ensemble.Restore(t, backup) }
		},
		Faults: []electiontest.Fault{
			{Name: "the record is deleted", Do: func(_ *testing.T, resource string) { as.deleteAll(record(resource)) }},
			{Name: "the record is overwritten", Do: func(_ *testing.T, resource string) { as.set(record(resource), "mine") }},
			{Name: "another holder is written", Do: func(_ *testing.T, resource string) {
				as.set(record(resource), `{"record":{},"holder":"operator","ttl":1,"write":"operator"}`)
			}},
			{Name: "the parent of the records is deleted", Do: func(*testing.T, string) { as.deleteAll(root + "/" + db) }},
		},
	}
}

// admin is an operator, who does what zkCli.sh does.
type admin struct {
	t    *testing.T
	conn *zk.Conn
}

func (a admin) set(path, data string) {
	a.t.Helper()
	if _, err := a.conn.Set(path, []byte(data), -1); err != nil {
		a.t.Fatalf("set %s: %v", path, err)
	}
}

// deleteAll deletes a znode and all below it, whatever else is made or deleted there meanwhile.
func (a admin) deleteAll(path string) {
	a.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		children, _, err := a.conn.Children(path)
		if errors.Is(err, zk.ErrNoNode) {
			return
		}
		if err != nil {
			a.t.Fatalf("list %s: %v", path, err)
		}
		for _, c := range children {
			a.deleteAll(path + "/" + c)
		}
		switch err := a.conn.Delete(path, -1); {
		case err == nil, errors.Is(err, zk.ErrNoNode):
			return
		case !errors.Is(err, zk.ErrNotEmpty):
			a.t.Fatalf("delete %s: %v", path, err)
		}
	}
	a.t.Fatalf("%s cannot be deleted: somebody makes children again and again", path)
}

func client(t *testing.T, cfg zookeeper.Config) *kv.Client {
	t.Helper()
	c, err := open(t, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open returns a client that is closed when the test ends.
func open(t *testing.T, cfg zookeeper.Config) (*kv.Client, error) {
	cfg.Logger = zaptest.NewLogger(t).Named(strings.TrimPrefix(cfg.Proxy, cfg.Prefix))
	c, err := zookeeper.New(cfg)
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
