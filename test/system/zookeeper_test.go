package system

import (
	"encoding/json"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/fencepost/fencepost/internal/zookeepertest"
)

func init() {
	allProviders = append(allProviders, "zookeeper")
	moreProviders["zookeeper"] = withZooKeeper
	killedBounds["zookeeper"] = restartTTL + zookeepertest.Tick
	others := stopServers
	stopServers = func() { others(); zookeepertest.StopShared() }
}

// withZooKeeper keeps the leases of a cluster in a real ZooKeeper.
func withZooKeeper(h *cluster) {
	h.t.Helper()
	ensemble := zookeepertest.Shared(h.t)
	h.settings = append(h.settings, prefixed([]string{
		"ELECTION_PROVIDER=zookeeper", "ELECTION_ZOOKEEPER_SERVERS=" + ensemble.Addr(), "ELECTION_ZOOKEEPER_PREFIX=" + h.prefix,
	})...)
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
