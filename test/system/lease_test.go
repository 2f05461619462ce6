package system

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"

	"github.com/fencepost/fencepost/internal/consultest"
	"github.com/fencepost/fencepost/internal/etcdtest"
	"github.com/fencepost/fencepost/internal/pgtest"
	"github.com/fencepost/fencepost/internal/zookeepertest"
)

// takeLease takes the resource's lease away from its holder.
func (h *cluster) takeLease() {
	h.t.Helper()
	if h.consul == nil {
		h.pg.Exec(h.t, pgtest.Superuser, h.db, "UPDATE fencepost.lease SET vacancy = 'left', expires_at = now() WHERE vacancy = 'held'",
			"SELECT fencepost.lease_tell('"+resource+"')")
		return
	}
	if session := h.session(); session != "" {
		h.consul.Request(h.t, http.MethodPut, "/v1/session/destroy/"+session, nil)
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
	stopServers = append(stopServers, zookeepertest.StopShared)
}

// withZooKeeper keeps the leases of a cluster in a real ZooKeeper.
func withZooKeeper(h *cluster) {
	h.t.Helper()
	h.settings = append(h.settings, zookeepertest.Shared(h.t).Settings(h.prefix)...)
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
