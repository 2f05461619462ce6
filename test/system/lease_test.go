package system

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/go-zookeeper/zk"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// takeLease takes the resource's lease away from its holder.
func (h *cluster) takeLease() {
	h.t.Helper()
	if h.take != nil {
		h.take()
		return
	}
	if h.etcd != nil {
		h.revokeLease()
		return
	}
	if h.redis != nil {
		h.redis.Do(h.t, "HDEL", h.prefix+"/.leases", h.db+"/"+resource)
		return
	}
	if h.consul == nil {
		h.pg.Exec(h.t, pgtest.Superuser, h.db, "UPDATE fencepost.lease SET vacancy = 'left', expires_at = now() WHERE vacancy = 'held'",
			"SELECT fencepost.lease_tell('"+resource+"')")
		return
	}
	if session := h.session(); session != "" {
		h.consul.Request(h.t, http.MethodPut, "/v1/session/destroy/"+session, nil)
	}
}

// revokeLease revokes the etcd lease of the resource's holder, if it has one.
func (h *cluster) revokeLease() {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), process.Patience)
	defer cancel()
	client := h.etcd.Client(h.t, "", "")
	found, err := client.Get(ctx, h.prefix+"/"+h.db+"/"+resource+"/.held")
	if err != nil {
		h.t.Fatalf("read the lease in etcd: %v", err)
	}
	for _, one := range found.Kvs {
		if _, err := client.Revoke(ctx, clientv3.LeaseID(one.Lease)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			h.t.Fatalf("revoke the lease in etcd: %v", err)
		}
	}
}

// key returns the path of the lease's key in Consul.
func (h *cluster) key() string {
	return "/v1/kv/" + h.prefix + "/" + url.PathEscape(h.db) + "/" + resource
}

// pair is the lease's entry in Consul.
type pair struct {
	Session     string
	ModifyIndex int64
	Flags       int64
}

// pair returns the entry, nil if there is none.
func (h *cluster) pair() *pair {
	h.t.Helper()
	var pairs []pair
	text := h.consul.Request(h.t, http.MethodGet, "/v1/kv/"+h.prefix+"/?recurse", nil)
	var all []struct {
		Key string
		pair
	}
	if err := json.Unmarshal(text, &all); err != nil {
		h.t.Fatalf("decode Consul's response %s: %v", text, err)
	}
	for _, one := range all {
		if "/v1/kv/"+one.Key == h.key() {
			pairs = append(pairs, one.pair)
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	return &pairs[0]
}

// session returns the session that holds the lease, "" if there is none.
func (h *cluster) session() string {
	h.t.Helper()
	if p := h.pair(); p != nil {
		return p.Session
	}
	return ""
}

func init() {
	allProviders = append(allProviders, "zookeeper")
	moreProviders["zookeeper"] = withZooKeeper
	killedBounds["zookeeper"] = restartTTL + zookeepertest.Tick
	stopServers = append(stopServers, zookeepertest.StopShared)
}

// withZooKeeper keeps the leases of a cluster in a real ZooKeeper.
func withZooKeeper(h *cluster) {
	h.t.Helper()
	ensemble := zookeepertest.Shared(h.t)
	h.settings = append(h.settings, ensemble.Settings(h.prefix)...)
	h.take = func() {
		h.t.Helper()
		conn := ensemble.Client(h.t, "", "")
		data, _, err := conn.Get("/" + h.prefix + "/" + h.db + "/" + resource)
		if err != nil {
			h.t.Fatalf("read the lease in ZooKeeper: %v", err)
		}
		var record struct{ Life string }
		if err := json.Unmarshal(data, &record); err != nil {
			h.t.Fatalf("decode the lease %s: %v", data, err)
		}
		if record.Life == "" {
			return
		}
		if err := conn.Delete("/"+h.prefix+"/.lives/"+record.Life, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			h.t.Fatalf("delete the life in ZooKeeper: %v", err)
		}
	}
}

// losable are the lease services that are clusters of servers here. Each function starts one for a
// cluster, whose proxies are none of the servers, and returns what finds the server that leads it.
var losable = map[string]func(t testing.TB, opts ...option) (h *cluster, find func() (kill func())){
	"consul": func(t testing.TB, opts ...option) (*cluster, func() func()) {
		h := newCluster(t, "none", opts...)
		servers := consultest.StartServers(t)
		h.settings = append(h.settings, servers.Settings(h.prefix)...)
		return h, func() func() { i := servers.Leader(t); return func() { servers.Kill(i) } }
	},
	"etcd": func(t testing.TB, opts ...option) (*cluster, func() func()) {
		h := newCluster(t, "none", opts...)
		servers := etcdtest.Start(t, etcdtest.WithMembers(3), etcdtest.WithDefaultTicks())
		h.settings = append(h.settings, servers.Settings(h.prefix)...)
		return h, func() func() { i := servers.Leader(t); return func() { servers.Kill(i) } }
	},
	"raft": func(t testing.TB, opts ...option) (*cluster, func() func()) {
		r := newRaftProxies(t, opts...)
		return r.cluster, func() func() { p := r.proxies[r.leader()]; return func() { p.Kill(t) } }
	},
	"zookeeper": func(t testing.TB, opts ...option) (*cluster, func() func()) {
		h := newCluster(t, "none", opts...)
		servers := zookeepertest.Start(t, zookeepertest.WithServers(3))
		h.settings = append(h.settings, servers.Settings(h.prefix)...)
		return h, func() func() { i := servers.Leader(t); return func() { servers.Kill(i) } }
	},
}
