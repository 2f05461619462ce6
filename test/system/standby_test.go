package system

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost/fencepost/internal/fixture/process"
	"github.com/fencepost/fencepost/internal/pgtest"
)

// TestAProxyAtAStandbyStarvesNobody checks that the workers of a proxy whose server is a hot
// standby do not keep the lease from a worker that could write: their proxy cannot record
// an epoch, and gives each award back at once.
func TestAProxyAtAStandbyStarvesNobody(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	standby := pgtest.Start(t)
	h := newCluster(t, "consul", onServer(pgtest.Start(t)), with("LEASE_TTL="+ttl.String()))
	copied := standby.Database(t)
	standby.Exec(t, pgtest.Superuser, "postgres", fmt.Sprintf("ALTER DATABASE %s RENAME TO %s", copied, h.db))
	healthy, other := h.proxy(), h.proxy("UPSTREAM_ADDRESS="+standby.Addr())
	h.join(other, "earlier", "campaign", "wait").leave() // as on the primary, from which a standby has its fence
	standby.Stop(t, pgtest.Fast)
	if err := os.WriteFile(filepath.Join(standby.DataDir(), "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	standby.Restart(t)

	for i := range 6 {
		h.join(other, fmt.Sprintf("standby-%d", i))
	}
	b := h.join(healthy, "b")
	began := time.Now()
	process.Eventually(t, process.Patience, "b to lead", func() bool { return b.exec("INSERT INTO work VALUES ('b')") == nil })
	if took := time.Since(began); took > ttl {
		t.Errorf("the lease came to b after %s, as if it had expired", took)
	}
}
